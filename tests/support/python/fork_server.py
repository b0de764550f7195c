"""Runs Python scripts in forks of one process that has imported torch, which takes 2 to 8 seconds of a core each time.

fork_server.py serve SOCKET                       starts that process, the server, and returns. It ends with its starter (CTest).
fork_server.py run SOCKET SCRIPT [ARGUMENT...]    runs the script, with this process's environment, folder, input and outputs,
                                                  and ends with the script's exit code. Says on stderr how much
                                                  processor time the script used, which is no descendant of the test.

Where there is no server, `run` becomes the script. So tests that are started by hand need none. A script sees nothing of
earlier ones: each has a fork of its own of a process that has only imported. A script whose client ends is killed, with all
that it has started.
"""
import json
import os
import signal
import socket
import sys
import time

# What the scripts import, and what optimizers import when the first one is made.
MODULES = ("torch", "torch.distributed.checkpoint", "torch.distributed.optim", "torch.distributed.algorithms.join",
           "torch.distributed.algorithms.ddp_comm_hooks", "torch._dynamo", "torch.optim.swa_utils", "torch.utils.checkpoint",
           "torchvision.models", "torchvision.transforms.v2", "numpy", "PIL.Image", "runpy", "tempfile", "multiprocessing")


# The exit code of a script that has left processes behind. They are killed.
LEFT_PROCESSES = 99


def address_of(path):
    """The socket's folder by its descriptor, because the path itself may be longer than an address."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    return f"/proc/self/fd/{folder}/{os.path.basename(path)}"


def serve(path):
    starter = os.pidfd_open(os.getppid())
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    address = address_of(path)
    if os.path.lexists(address):
        os.unlink(address)
    listener.bind(address)
    listener.listen(100)  # clients wait there while the server imports
    if os.fork() != 0:
        return
    os.setsid()
    log = os.open(f"{path}.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in range(3):
        os.dup2(log, number)
    try:
        Server(listener, starter).run()
    finally:
        os.unlink(address)


def group_ends(group):
    """Whether its last process ends within 2 s: helpers of Python's modules end a moment after the script."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


class Server:
    def __init__(self, listener, starter):
        import contextlib
        import gc
        import importlib
        import selectors

        self.listener, self.starter = listener, starter
        self.selector = selectors.DefaultSelector()
        self.clients = {}  # the descriptor of each script's process: its number and its client
        for name in MODULES:
            with contextlib.suppress(ImportError):  # the scripts that need it say so
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # else each fork copies all of it when it first collects
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("expected one thread, because forks have no other; found several")

    def run(self):
        """Returns when the starter has ended. Does not return in a script's process."""
        import selectors

        for what in (self.listener, self.starter):
            self.selector.register(what, selectors.EVENT_READ)
        while True:
            key = self.selector.select()[0][0]
            if key.fileobj == self.starter:
                for pid, _ in self.clients.values():
                    os.killpg(pid, signal.SIGKILL)
                return
            if key.fileobj is self.listener:
                request = self.start()
                if request is not None:
                    try:
                        run_script(request)
                    finally:  # an error of run_script() itself; the server's end is not this process's
                        os._exit(1)
            elif key.fileobj in self.clients:
                self.end(key.fileobj)
            else:  # a client, which says nothing more: it has ended
                os.killpg(key.data, signal.SIGKILL)
                self.selector.unregister(key.fileobj)

    def start(self):
        """Returns the request in a new process of the script, and None in the server."""
        import selectors

        client = self.listener.accept()[0]
        text, descriptors, _, _ = socket.recv_fds(client, 1 << 16, 3)
        while text and not text.endswith(b"\n"):
            more = client.recv(1 << 16)
            text = text + more if more else b""  # the client has ended
        pid = os.fork() if text else None
        if pid is not None:
            os.setpgid(pid, pid)  # both call it, because either may be first
        if pid == 0:
            self.selector.close()
            for file in (self.listener, client, *(other for _, other in self.clients.values())):
                file.close()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid == 0:
            return json.loads(text)
        if pid is not None:
            process = os.pidfd_open(pid)
            self.clients[process] = pid, client
            self.selector.register(process, selectors.EVENT_READ)
            self.selector.register(client, selectors.EVENT_READ, pid)
        return None

    def end(self, process):
        pid, client = self.clients.pop(process)
        self.selector.unregister(process)
        os.close(process)
        _, status, used = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if not group_ends(pid):
            os.killpg(pid, signal.SIGKILL)
            code = code or LEFT_PROCESSES
        if client in self.selector.get_map():
            self.selector.unregister(client)
            try:
                milliseconds = round(1000 * (used.ru_utime + used.ru_stime))
                client.sendall(f"{code if code >= 0 else 128 - code} {milliseconds}".encode())
            except OSError:  # the client has ended
                pass
        client.close()


def run_script(request):
    """Ends the process as Python does, but takes nothing apart that the server has imported."""
    import atexit
    import runpy
    import tempfile
    import traceback

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["command"]
    packages = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:1] = [os.path.dirname(sys.argv[0]), *packages]
    tempfile.tempdir = None  # from the environment
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(path, command):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.connect(address_of(path))
    except OSError:
        os.execv(sys.executable, [sys.executable, *command])
    start = time.monotonic()
    request = {"environment": dict(os.environ), "folder": os.getcwd(), "command": command}
    text = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(client, [text], [0, 1, 2])
    client.sendall(text[sent:])
    end = client.recv(32)
    if not end:
        sys.exit(f"the server of Python's scripts has ended before the script; {path}.log says why")
    code, milliseconds = map(int, end.split())
    if code == LEFT_PROCESSES:
        print(f"{command[0]} has left processes behind", file=sys.stderr)
    # As support/main says it of tests: tools/build.sh adds both.
    took = round(1000 * (time.monotonic() - start))
    print(f"[  SCRIPT  ] {os.path.basename(command[0])} (processor {milliseconds} ms, {took} ms)", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        run(sys.argv[2], sys.argv[3:])
