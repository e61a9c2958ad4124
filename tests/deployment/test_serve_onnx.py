"""The service answers every request, and neither large images nor slow clients hold it."""

import importlib
import io
import socket
import struct
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / 'tools' / 'deployment'))
serve_onnx = importlib.import_module('serve_onnx')
del sys.path[0]

ABOUT = dict(resize=None, mean=[0] * 3, std=[1] * 3, size_divisor=1, pad_value=0, align_corners=False, threshold=None)
ABOUT |= dict(channel_order='RGB', classes=['low', 'red'], palette=[[0] * 3, [9] * 3])
SECONDS = 0.3


def network():
    """Labels are 1 where red is above 127."""

    def run(_, inputs):
        (red,) = inputs['x'][:, 0]
        return [np.stack([np.full_like(red, 127), red])[None]]

    return SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name='x')], run=run)


@pytest.fixture
def server(monkeypatch, request):
    """A parameter has further metadata, and the size of the only input."""
    more = getattr(request, 'param', {})
    model = network(), ABOUT | more, more.get('fixed')
    options = dict(max_pixels=400, max_bytes=10**5, seconds=SECONDS, connections=3)
    with serve_onnx.make_server(model, ('127.0.0.1', 0), **options) as server:
        monkeypatch.setattr(server.RequestHandlerClass, 'log_message', lambda *_: None)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def exchange(server, request):
    with socket.create_connection(server.server_address, 20) as connection:
        connection.sendall(request)
        with connection.makefile('rb') as answer:
            return answer.read()


def status(server, request):
    return int(exchange(server, request).split()[1])


def post(body, length=None):
    return b'POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n' % (len(body) if length is None else length) + body


def picture(side=20, kind='PNG', width=None):
    pixels = np.zeros((side, width or side, 3), np.uint8)
    pixels[:7, :, 0] = 255
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def bomb(side):
    data = (
        (b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0)),
        (b'IDAT', zlib.compress(bytes(10**6))),
        (b'IEND', b''),
    )
    chunks = (struct.pack('>I', len(d)) + k + d + struct.pack('>I', zlib.crc32(k + d)) for k, d in data)
    return b'\x89PNG\r\n\x1a\n' + b''.join(chunks)


def is_answered(server):
    answer = exchange(server, post(picture())).partition(b'\r\n\r\n')[2]
    with Image.open(io.BytesIO(answer)) as labels:
        assert np.asarray(labels).sum(1).tolist() == [20] * 7 + [0] * 13


BAD = {
    'too many pixels': (post(picture(21)), 400),
    'a bomb': (post(bomb(30_000)), 400),
    'another format': (post(picture(kind='GIF')), 400),
    'half an image': (post(picture()[:50]), 400),
    'no length': (b'POST / HTTP/1.0\r\n\r\n', 411),
    'negative length': (post(b'', -1), 400),
    'no number': (b'POST / HTTP/1.0\r\nContent-Length: \xd9\xa1\r\n\r\n', 400),
    'two lengths': (b'POST / HTTP/1.0\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab', 400),
    'chunked': (b'POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n1', 400),
    'too many bytes': (post(bytes(2 * 10**5)), 413),
    'long header': (b'GET / HTTP/1.0\r\nX: ' + b'x' * 10**5 + b'\r\n\r\n', 431),
    'long path': (b'GET /' + b'x' * 10**5 + b' HTTP/1.0\r\n\r\n', 414),
    'another method': (b'DELETE / HTTP/1.0\r\n\r\n', 405),
    'TLS': (b'\x16\x03\x01\x02\x00\r\n\r\n', 400),
    'an empty line': (b'\r\n', 400),
    'slow header': (b'POST / HTTP/1.0\r\nContent-Le', 408),
    'slow body': (post(b'abc', 10), 408),
}


@pytest.mark.parametrize('kind', BAD)
def test_a_bad_request_gets_an_answer_and_the_next_client_is_served(server, kind):
    request, code = BAD[kind]
    assert status(server, request) == code
    is_answered(server)


@pytest.mark.parametrize(
    'server',
    [dict(size_divisor=32), dict(resize=dict(scale=(60, 20), scale_factor=None, keep_ratio=True))],
    indirect=True,
    ids=['padded to many rows', 'scaled to no row'],
)
def test_what_the_network_would_receive_is_limited_too(server):
    """A thin image has few pixels."""
    with Image.open(io.BytesIO(picture(1, width=399))) as image:
        assert image.width * image.height < 400
    assert status(server, post(picture(1, width=399))) == 400


@pytest.mark.parametrize(
    'server', [dict(size_divisor=8), dict(fixed=(30, 30))], indirect=True, ids=['padded', 'of the file']
)
def test_an_image_within_the_limit_is_served(server):
    """The network receives 24 × 24, or 30 × 30 pixels, which is what the limit of 400 does not speak of."""
    assert status(server, post(picture(20))) == 200


@pytest.mark.parametrize(
    ('version', 'length', 'answers'),
    [('1.1', None, (b'HTTP/1.1 100 ', b' 200 ')), ('1.1', 2 * 10**5, (b' 413 ',)), ('1.0', None, (b' 408 ',))],
)
def test_a_client_that_waits_before_its_body_is_told_to_send_it(server, version, length, answers):
    """Or that it is too large. HTTP/1.0 has no such answer."""
    body = picture()
    head = f'POST / HTTP/{version}\r\nExpect: 100-Continue\r\nContent-Length: {length or len(body)}\r\n\r\n'
    with socket.create_connection(server.server_address, 20) as connection:
        connection.sendall(head.encode())
        for answer, sent in zip(answers, (body, b'')):
            assert answer in connection.recv(1000)
            connection.sendall(sent)


def test_idle_clients_do_not_keep_others_out(server):
    """Three connections at a time: the next ones are told so, until the idle ones have timed out."""
    idle = [socket.create_connection(server.server_address) for _ in range(3)]
    assert status(server, b'') == 503
    for client in idle:
        client.settimeout(20)
        assert b' 408 ' in client.recv(100)
        client.close()
    while server.places._value < 3:  # their threads end
        pass
    is_answered(server)
