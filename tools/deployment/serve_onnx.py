"""Serve an ONNX file of export.py: POST an image, get its index map, a PNG. GET describes the model as JSON.

    python serve_onnx.py MODEL.onnx
    curl --fail --data-binary @photo.jpg http://localhost:8000 --output labels.png

It requires what run_onnx.py requires: copy both with the model.
"""

import argparse
import contextlib
import io
import json
import math
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import run_onnx


class SlowClientError(Exception):
    """A client has not sent its request in time."""


class _Timed(io.RawIOBase):
    def __init__(self, connection, seconds):
        self.connection, self.end = connection, time.monotonic() + seconds

    def readable(self):
        return True

    def readinto(self, buffer):
        try:
            self.connection.settimeout(max(self.end - time.monotonic(), 1e-3))
            return self.connection.recv_into(buffer)
        except TimeoutError:
            raise SlowClientError from None


class Server(HTTPServer):
    """A thread per connection, at most ``connections``, of which ``workers`` decode and segment images."""

    request_queue_size = 128

    def __init__(self, address, handler, connections, workers):
        super().__init__(address, handler)
        self.places, self.workers = threading.Semaphore(connections), threading.Semaphore(workers)

    def process_request(self, request, client_address):
        """Serve a connection in a thread, or answer that the service is busy."""
        if self.places.acquire(blocking=False):
            threading.Thread(target=self._serve, args=(request, client_address), daemon=True).start()
        else:
            request.settimeout(1)
            with contextlib.suppress(OSError):  # the client has gone
                request.sendall(b'HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n')
            self.shutdown_request(request)

    def _serve(self, request, client_address):
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client has gone
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            self.places.release()


def make_server(model, address, max_pixels=2**22, max_bytes=2**25, seconds=10, connections=128, workers=1):
    """Make a server for the three values that ``run_onnx.load`` returns.

    Args:
        model (tuple): session, metadata and fixed size.
        address (tuple): host and port.
        max_pixels (int): of an image; larger ones are refused before they are decoded.
        max_bytes (int): of an upload.
        seconds (float): in which a request must have arrived, and an answer be taken.
        connections (int): at a time. Further ones get 503.
        workers (int): images that are decoded and segmented at a time.
    """

    class Handler(BaseHTTPRequestHandler):
        default_request_version = 'HTTP/1.0'  # 0.9 has no status
        command = 'GET'  # of a client that sends nothing

        def setup(self):
            super().setup()
            self.rfile = io.BufferedReader(_Timed(self.connection, seconds))

        def handle_one_request(self):
            self.status = None
            try:
                super().handle_one_request()
                if self.status is None:  # an empty request, or none
                    self.requestline, self.request_version = '', 'HTTP/1.0'
                    self.send_error(400)
            except SlowClientError:
                self.requestline, self.request_version = '', 'HTTP/1.0'
                self.close_connection = True
                self.send_error(408)

        def send_response(self, code, message=None):
            self.status = code
            self.connection.settimeout(seconds)
            super().send_response(code, message)

        def send_error(self, code, message=None, explain=None):
            self.command = self.command or 'GET'  # a line without a method
            super().send_error(405 if code == 501 else code, message, explain)

        def do_GET(self):
            self.answer('application/json', json.dumps(model[1]).encode())

        def do_POST(self):
            lengths = self.headers.get_all('Content-Length') or []
            if not lengths:
                return self.send_error(411)
            if len(lengths) > 1 or not re.fullmatch('[0-9]{1,18}', lengths[0]) or 'Transfer-Encoding' in self.headers:
                return self.send_error(400, explain=f'Content-Length must be one number; got {" ".join(lengths)}')
            if int(lengths[0]) > max_bytes:
                return self.send_error(413, explain=f'an image may have {max_bytes} bytes; got {lengths[0]}')
            if self.headers.get('Expect', '').lower() == '100-continue' and self.request_version >= 'HTTP/1.1':
                self.wfile.write(b'HTTP/1.1 100 Continue\r\n\r\n')  # curl waits a second for it before a large body
            body = self.rfile.read(int(lengths[0]))
            if len(body) < int(lengths[0]):
                return self.send_error(400, explain=f'{lengths[0]} bytes were announced; got {len(body)}')
            with self.server.workers:
                self.segment(body)

        def segment(self, body):
            try:
                pixels = run_onnx.read(body, max_pixels=max_pixels)
                _, about, fixed = model
                scaled = run_onnx.target_size(*pixels.shape[:2], about['resize'], fixed)
                padded = run_onnx.padded_size(*scaled, about, fixed)
                if fixed is None and max(math.prod(scaled), math.prod(padded) / 2) > max_pixels:
                    raise ValueError(
                        f'the network would receive {padded[0]} × {padded[1]}, more than {max_pixels} pixels'
                    )
            except Exception as error:  # Pillow's decoders raise many
                return self.send_error(400, explain=str(error))
            try:
                _, labels = run_onnx.segment(*model, pixels)
            except Exception as error:
                return self.send_error(500, explain=str(error))
            return self.answer('image/png', run_onnx.to_index_map(labels, model[1]))

        def answer(self, kind, content):
            self.send_response(200)
            self.send_header('Content-Type', kind)
            self.send_header('Content-Length', str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def finish(self):
            super().finish()
            try:  # a client that is still sending would not see the answer if its bytes were left unread
                self.connection.shutdown(socket.SHUT_WR)
                self.connection.settimeout(0.2)
                left = max_bytes
                while left > 0 and (read := len(self.connection.recv(2**16))):
                    left -= read
            except OSError:
                pass

    return Server(address, Handler, connections, workers)


def main():
    parser = argparse.ArgumentParser(description='Serve an ONNX file over HTTP')
    parser.add_argument('model', help='ONNX file of export.py')
    parser.add_argument('--host', default='127.0.0.1', help='0.0.0.0: also for other machines; default: %(default)s')
    parser.add_argument('--port', type=int, default=8000, help='default: %(default)s')
    parser.add_argument(
        '--max-pixels',
        type=int,
        default=2**22,
        help='of an image; larger ones are refused. Memory grows with pixels, classes, workers; default: %(default)s',
    )
    parser.add_argument('--workers', type=int, default=1, help='images that are segmented at a time; default: 1')
    run_onnx.add_session_options(parser)
    args = parser.parse_args()
    for name in ('max_pixels', 'workers'):
        if getattr(args, name) < 1:
            parser.error(f'--{name.replace("_", "-")} must be at least 1; got {getattr(args, name)}')
    model = run_onnx.load(args.model, args.threads, args.provider)
    with make_server(model, (args.host, args.port), args.max_pixels, workers=args.workers) as server:
        print(f'serving {args.model} at http://{args.host}:{args.port}', flush=True)
        server.serve_forever()


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        sys.exit(f'serve_onnx.py: error: {error}')
