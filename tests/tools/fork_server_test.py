"""tests/support/python/fork_server.py runs a script as if it were started, and leaves nothing. With a server that imports nothing."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "support/python"
# What starts a server, waits for the end of its input, and so ends the server.
STARTER = """
import subprocess, sys
serve = "import sys; sys.path.insert(0, sys.argv[1]); import fork_server; fork_server.MODULES = (); fork_server.serve(sys.argv[2])"
subprocess.run([sys.executable, "-B", "-c", serve, *sys.argv[1:]], check=True)
print("started", flush=True)
sys.stdin.read()
"""


class ForkServer(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name).resolve()
        self.socket = self.folder / ("long" * 40) / "socket"
        self.socket.parent.mkdir()

    def start_server(self):
        command = [sys.executable, "-B", "-c", STARTER, FOLDER, self.socket]
        starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(starter.wait)
        self.addCleanup(starter.stdout.close)
        self.addCleanup(starter.stdin.close)
        self.assertEqual(starter.stdout.readline(), "started\n")
        return starter

    def client(self, script, *arguments, **options):
        path = self.folder / "script.py"
        path.write_text(script)
        command = [sys.executable, "-S", "-B", FOLDER / "fork_server.py", "run", self.socket, path, *arguments]
        return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def result_of(self, script, *arguments, **options):
        client = self.client(script, *arguments, **options)
        out, err = client.communicate("input", timeout=100)
        # What the client adds: how much processor time the script used.
        err, found = re.subn(r"\[  SCRIPT  \] script\.py \(processor \d+ ms, \d+ ms\)\n\Z", "", err)
        self.assertEqual(found, int(self.socket.exists()))
        return client.returncode, out, err

    def test_a_script_runs_as_if_it_were_started(self):
        see = ("import beside, os, sys\nsys.stderr.write('complains')\n"
               "print(sys.argv[1:], os.environ['OWN'], os.getcwd(), sys.stdin.read(), __name__, beside.text)\n")
        (self.folder / "beside.py").write_text("text = 'found'\n")
        environment = {**os.environ, "OWN": "x" * 100000, "PYTHONDONTWRITEBYTECODE": "1"}
        expected = (0, f"['a', 'b c'] {environment['OWN']} {self.socket.parent} input __main__ found\n", "complains")
        for _ in ("without a server", "with one", "again"):
            self.assertEqual(self.result_of(see, "a", "b c", env=environment, cwd=self.socket.parent), expected)
            if not self.socket.exists():
                self.start_server()

    def test_a_script_ends_as_if_it_were_started(self):
        self.start_server()
        self.assertEqual(self.result_of("raise SystemExit(7)"), (7, "", ""))
        self.assertEqual(self.result_of("raise SystemExit('why')"), (1, "", "why\n"))
        self.assertEqual(self.result_of("import atexit; atexit.register(print, 'last')"), (0, "last\n", ""))
        code, _, err = self.result_of("raise ValueError('bad')")
        self.assertEqual((code, err.splitlines()[-1]), (1, "ValueError: bad"))
        self.assertEqual(self.result_of("import os; os.kill(os.getpid(), 9)")[0], 128 + signal.SIGKILL)

    def test_nothing_is_left(self):
        starter = self.start_server()
        # The pipe of its output ends with the last process that has it.
        wait = "import os, time\nos.fork()\nprint(os.getpid(), flush=True)\ntime.sleep(1000)"
        with self.client(wait) as client:
            self.assertEqual(len({client.stdout.readline() for _ in range(2)}), 2)
            client.kill()
            self.assertEqual(client.stdout.read(), "")
        with self.client(wait) as client:
            self.assertEqual(len({client.stdout.readline() for _ in range(2)}), 2)
            starter.stdin.close()
            self.assertEqual(client.wait(), 1)
            self.assertIn("the server of Python's scripts has ended", client.stderr.read())
            self.assertEqual(client.stdout.read(), "")
        while self.socket.exists():
            time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
