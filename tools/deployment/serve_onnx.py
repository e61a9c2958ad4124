"""Serve an ONNX file of export.py: POST an image, get its index map, a PNG. GET describes the model as JSON.

    python serve_onnx.py MODEL.onnx
    curl --fail --data-binary @photo.jpg http://localhost:8000 --output labels.png

It requires what run_onnx.py requires: copy both with the model.
"""

import argparse
import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import run_onnx


def make_server(model, address):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer('application/json', json.dumps(model[1]).encode())

        def do_POST(self):
            try:
                _, labels = run_onnx.segment(*model, self.rfile.read(int(self.headers['Content-Length'] or 0)))
            except (OSError, ValueError, RuntimeError) as error:
                self.send_error(500 if isinstance(error, RuntimeError) else 400, explain=str(error))
                return
            png = io.BytesIO()
            run_onnx.to_index_map(labels, model[1]).save(png, 'PNG')
            self.answer('image/png', png.getvalue())

        def answer(self, kind, content):
            self.send_response(200)
            self.send_header('Content-Type', kind)
            self.send_header('Content-Length', str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return ThreadingHTTPServer(address, Handler)


def main():
    parser = argparse.ArgumentParser(description='Serve an ONNX file over HTTP')
    parser.add_argument('model', help='ONNX file of export.py')
    parser.add_argument('--host', default='127.0.0.1', help='0.0.0.0: also for other machines; default: %(default)s')
    parser.add_argument('--port', type=int, default=8000, help='default: %(default)s')
    run_onnx.add_session_options(parser)
    args = parser.parse_args()
    with make_server(run_onnx.load(args.model, args.threads, args.provider), (args.host, args.port)) as server:
        print(f'serving {args.model} at http://{args.host}:{args.port}', flush=True)
        server.serve_forever()


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        sys.exit(f'serve_onnx.py: error: {error}')
