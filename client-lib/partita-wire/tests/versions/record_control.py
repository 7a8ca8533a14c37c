#!/usr/bin/env python3
"""Writes down what a `partitad` and a `partita-gpu` of one version say to each other.

usage: record_control.py PARTITAD PARTITA_GPU SHIM KERNEL.PTX

This script stands where systemd's `partita-gpu@0.socket` would: it takes the call of `partitad`, hands it on to the
`partita-gpu`, and keeps a copy of every message on the control line. Meanwhile it runs `program.py`, and asks the API
for its resources. It prints JSON: the call, its answer, and the messages of each side, those of one kind once.
"""
import array
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

partitad, partita_gpu, shim, kernel = map(os.path.abspath, sys.argv[1:])
seqpacket = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive(sock):
    fds = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(8192, socket.CMSG_SPACE(8 * fds.itemsize))
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload)
    return data, list(fds)


def send(sock, data, fds):
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def pump(source, sink, heard):
    while data := source.recv(1 << 16):
        heard.extend(data)
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def frames(heard):
    at, found, kinds = 0, [], set()
    while at < len(heard):
        (length,) = struct.unpack_from("<I", heard, at)
        message = json.loads(heard[at + 4 : at + 4 + length])
        at += 4 + length
        # `ready`, or the question or answer inside; an enumeration's variant is a text or the only key.
        inside = message.get("ask", message.get("answer", message)) if isinstance(message, dict) else message
        inside = inside.get("answer", inside) if isinstance(inside, dict) else inside
        kind = inside if isinstance(inside, str) else next(iter(inside))
        if kind not in kinds:
            kinds.add(kind)
            found.append(message)
    return found


def api(folder, request, body=""):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(folder + "/api.sock")
        head = f"{request} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall((head + body).encode())
        answer = b""
        while data := sock.recv(1 << 16):
            answer += data
    return answer.partition(b"\r\n\r\n")[2]


with tempfile.TemporaryDirectory() as folder:
    os.mkdir(folder + "/gpu", 0o700)
    real, door = seqpacket(), seqpacket()
    real.bind(folder + "/real.sock")
    real.listen(4)
    door.bind(folder + "/gpu/0.sock")
    door.listen(4)
    state = ["--state-dir", folder + "/state"]
    gpu = subprocess.Popen([partita_gpu, *state], stdin=real)
    options = ["--device", "emu:cd-search-24", "--gpu-sockets", "--socket-dir", folder, *state]
    daemon = subprocess.Popen([partitad, *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    caller, _ = door.accept()
    call, (control, sessions) = receive(caller)
    ours, theirs = socket.socketpair()
    onward = seqpacket()
    onward.connect(folder + "/real.sock")
    send(onward, call, [theirs.fileno(), sessions])
    theirs.close()
    os.close(sessions)
    answer = onward.recv(8192)
    caller.send(answer)
    line, asked, said = socket.socket(fileno=control), bytearray(), bytearray()
    line.setblocking(True)
    pumps = [threading.Thread(target=pump, args=way) for way in [(line, ours, asked), (ours, line, said)]]
    for thread in pumps:
        thread.start()
    while not os.path.exists(folder + "/api.sock"):
        time.sleep(0.05)
    environment = {**os.environ, "PARTITA_SOCKET_DIR": folder, "LD_PRELOAD": shim, "PARTITA_APP": "job"}
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")
    for _ in range(2):
        subprocess.run([sys.executable, program, kernel], env=environment, check=True)
    for path in ["status", "applications", "sessions", "kernels", "partitions", "decisions"]:
        api(folder, "GET /v1/" + path)
    api(folder, "PUT /v1/plan", '{"partitions": [{"application": 99, "sms": "0-3"}]}')
    api(folder, "DELETE /v1/plan")
    api(folder, "DELETE /v1/sessions/99/launches")
    api(folder, "GET /metrics")
    time.sleep(1)
    daemon.terminate()
    daemon.wait()
    for thread in pumps:
        thread.join()
    gpu.terminate()
    gpu.wait()

print(
    json.dumps(
        {
            "call": json.loads(call),
            "answer": json.loads(answer),
            "to_gpu": frames(asked),
            "from_gpu": frames(said),
        },
        indent=1,
    )
)
