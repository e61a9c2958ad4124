"""Put load on a service of serve_onnx.py: honest images beside hostile requests. Prints answers, times and memory.

    python tools/benchmarks/service.py http://127.0.0.1:8000 [--pid PID] [--clients 40] [--requests 10000] …

It exits with code 1 if an honest request gets another answer than its index map, if a hostile one gets none or none of
4xx, or if the service has gone.
"""

import argparse
import collections
import contextlib
import http.client
import io
import random
import socket
import struct
import sys
import threading
import time
import zlib
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
from PIL import Image


def png_of_zeros(side):
    """A PNG of a few kilobytes that unpacks to ``side`` × ``side`` pixels."""
    chunks = (b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0)), (b'IDAT', zlib.compress(bytes(2**24), 9))
    chunk = lambda kind, data: struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))  # noqa: E731
    return b'\x89PNG\r\n\x1a\n' + b''.join(chunk(*c) for c in (*chunks, (b'IEND', b'')))


def hostile(image, rng):
    """Raw requests, none of which is an image that the service accepts."""

    def post(body, length=None):
        return b'POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n' % (len(body) if length is None else length) + body

    cut = image[: rng.randrange(8, len(image) // 2)]
    return rng.choice(
        [
            post(png_of_zeros(rng.choice([6000, 13300, 60000]))),
            post(cut),
            post(rng.randbytes(300)),
            post(b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n'),
            post(b'', 10**15),
            post(b'', -1),
            b'POST / HTTP/1.0\r\nContent-Length: ten\r\n\r\n',
            b'POST / HTTP/1.0\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab',
            b'POST / HTTP/1.0\r\n\r\n' + cut,
            b'POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n',
            b'GET / HTTP/1.0\r\nX: ' + b'x' * 100_000 + b'\r\n\r\n',
            b'GET / HTTP/1.0\r\n' + b'X: y\r\n' * 500 + b'\r\n',
            b'GET /' + b'../' * 30_000 + b' HTTP/1.0\r\n\r\n',
            b'DELETE /../../etc/passwd HTTP/1.0\r\n\r\n',
            b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + rng.randbytes(50) + b'\r\n\r\n',
            b'\r\n\r\n',
            post(cut, len(cut) + 100),  # and then nothing
            b'POST / HTTP/1.0\r\nContent-Le',
        ]
    )


def raw(address, request):
    """Send bytes, and return the status of the answer, or what became of it."""
    try:
        with socket.create_connection(address, 60) as connection:
            with contextlib.suppress(OSError):  # an answer may be there nevertheless
                connection.sendall(request)
            answer = connection.makefile('rb').readline(200).split()
        return int(answer[1]) if len(answer) > 1 else 'no answer'
    except (OSError, ValueError) as error:
        return type(error).__name__


def honest(address, image):
    connection = http.client.HTTPConnection(*address, timeout=120)
    try:
        connection.request('POST', '/', image)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, b''
    finally:
        connection.close()


def memory(pid):
    lines = Path(f'/proc/{pid}/status').read_text(encoding='utf-8').splitlines() if pid else []
    pairs = (line.split(':', 1) for line in lines if line.startswith(('VmRSS', 'VmHWM')))
    return {key: int(value.split()[0]) // 1024 for key, value in pairs}


def main():
    parser = argparse.ArgumentParser(description='Put load on a service of serve_onnx.py')
    parser.add_argument('url')
    parser.add_argument('--pid', type=int, help='of the service: its memory is printed')
    parser.add_argument('--clients', type=int, default=40, help='at a time; default: 40')
    parser.add_argument('--requests', type=int, default=10000, help='in all; default: 10000')
    parser.add_argument('--hostile', type=int, default=200, help='of them; default: 200')
    parser.add_argument('--size', type=int, default=64, help='side of an honest image; default: 64')
    args = parser.parse_args()
    address = (urlparse(args.url).hostname, urlparse(args.url).port or 80)
    rng = random.Random(0)
    pixels = np.random.default_rng(0).integers(0, 256, (args.size, args.size, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, 'PNG')
    image = content.getvalue()
    status, expected = honest(address, image)
    if status != 200:
        sys.exit(f'{args.url}: an image gets {status}')
    jobs = collections.deque(
        [None] * (args.requests - args.hostile) + [hostile(image, rng) for _ in range(args.hostile)]
    )
    rng.shuffle(jobs)
    times, answers, bad = [], collections.Counter(), collections.Counter()

    def client():
        while True:
            try:
                job = jobs.popleft()
            except IndexError:
                return
            start = time.monotonic()
            if job is None:
                status, body = honest(address, image)
                times.append(time.monotonic() - start)
                answers[status if body == expected or status != 200 else 'another index map'] += 1
            else:
                bad[raw(address, job)] += 1

    print('memory before, MiB:', memory(args.pid))
    threads = [threading.Thread(target=client) for _ in range(args.clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    print('memory after, MiB:', memory(args.pid))
    print(f'{args.requests} requests in {seconds:.1f} s; honest: {dict(answers)}; hostile: {dict(bad)}')
    print('honest, ms: p50 {:.1f}, p99 {:.1f}, max {:.1f}'.format(*(np.percentile(times, (50, 99, 100)) * 1000)))
    alive = honest(address, image) == (200, expected)
    lost = set(answers) != {200} or any(not isinstance(code, int) or not 400 <= code < 500 for code in bad)
    sys.exit(0 if alive and not lost else 1)


if __name__ == '__main__':
    main()
