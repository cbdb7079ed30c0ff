"""An empty data folder, and a web server."""

import http.server
import threading

import pytest


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("UCFL_DATA", str(folder))
    return folder


@pytest.fixture
def server():
    """A real web server on this machine that serves what the test puts in it."""
    files = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body, length = files.get(self.path, (None, 0))
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if body:
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield files, f"http://127.0.0.1:{web.server_address[1]}"
        web.shutdown()
        thread.join()
