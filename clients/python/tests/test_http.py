"""A service that means harm: what it may cost whoever asks."""

from __future__ import annotations

import http.server
import json
import threading
import unittest
import unittest.mock
import urllib.request

from batchfit import _http, ask_tell


class Evil(http.server.BaseHTTPRequestHandler):
    """Answers as the path says; keeps what it was sent."""

    seen: list[tuple[str, str]] = []
    ended = threading.Event()
    left = threading.Event()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization", "")))
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/stolen")
            self.end_headers()
            return
        if self.path == "/negative":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n")
            return
        if self.path in ("/continue", "/trailers"):
            first, more = {"/continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n")}.get(
                self.path, (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n")
            )
            try:
                self.wfile.write(first)
                while True:
                    self.wfile.write(more * 1000)
            except OSError:
                self.left.set()
            return
        self.send_response(422 if self.path == "/refuse" else 200)
        self.end_headers()
        if self.path == "/refuse":
            self.wfile.write(json.dumps({"detail": "\x1b]0;owned\x07no"}).encode())
        elif self.path == "/flood":
            self.wfile.write(b" " * (_http.LONGEST + 1))
        elif self.path == "/hang":
            self.wfile.flush()
            self.ended.wait()


class HttpTest(unittest.TestCase):
    def setUp(self) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Evil.seen.clear()
        Evil.ended.clear()
        Evil.left.clear()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.addCleanup(Evil.ended.set)

    def ask(self, path: str, patience: float = 30.0) -> bytes:
        headers = {"Authorization": "Bearer secret"}
        return _http.ask(urllib.request.Request(self.url + path, headers=headers), patience)

    def test_a_key_follows_no_redirect(self) -> None:
        with self.assertRaisesRegex(_http.Refused, "^302"):
            self.ask("/redirect")
        self.assertEqual(Evil.seen, [("/redirect", "Bearer secret")])

    def test_the_key_of_the_environment_is_sent_unless_another_is_given(self) -> None:
        with unittest.mock.patch.dict("os.environ", BATCHFIT_KEY="own"):
            _http.ask(urllib.request.Request(self.url + "/"), 30.0)
            self.ask("/")
        self.assertEqual(Evil.seen, [("/", "Bearer own"), ("/", "Bearer secret")])

    def test_an_answer_is_bounded_in_bytes_and_in_whole_time(self) -> None:
        with self.assertRaisesRegex(OSError, "too long"):
            self.ask("/flood")
        with self.assertRaisesRegex(OSError, "no answer within|timed out"):
            self.ask("/hang", patience=0.1)

    def test_what_never_ends_around_an_answer_is_not_read_on(self) -> None:
        for path in ("/continue", "/trailers"):
            Evil.left.clear()
            short = unittest.mock.patch.object(_http, "LONGEST", 0)
            with self.subTest(path), short, self.assertRaisesRegex(OSError, "too long"):
                self.ask(path)
            self.assertTrue(Evil.left.wait(60), path)

    def test_what_is_no_answer_is_an_error_of_ours(self) -> None:
        with self.assertRaisesRegex(OSError, "not HTTP"):
            self.ask("/negative")
        with unittest.mock.patch.object(_http, "ask", return_value=b'{"id": "\\ud800"}'):
            self.assertEqual(ask_tell.Server(self.url).begin({}), {"id": "\ud800"})

    def test_a_refusal_is_plain_text(self) -> None:
        with self.assertRaisesRegex(_http.Refused, "^422: \\]0;owned no$"):
            self.ask("/refuse")

    def test_a_deep_answer_is_a_value_error(self) -> None:
        with self.assertRaises(ValueError):
            _http.document(b"[" * 200_000)

    def test_an_answer_of_millions_of_items_is_not_read(self) -> None:
        for item in (b"[],", b"1.5,"):
            with self.assertRaisesRegex(ValueError, "too many items"):
                _http.document(b"[" + item * 1_000_000 + b"0]")
