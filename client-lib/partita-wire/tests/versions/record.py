#!/usr/bin/env python3
"""Writes down what a program of one version of Partita and a daemon say to each other.

usage: record.py SHIM SOCKET_DIR KERNEL.PTX

SHIM is the libpartita_cuda.so of the version, and a partitad of the same version serves in SOCKET_DIR with
`--device emu:cd-search-24`. This script stands between `program.py` and the daemon during the handshake, keeps a
descriptor of the session's memory, and reads both rings when the program has ended. It prints JSON; in it all bytes
are hexadecimal. Only places that all versions of protocol 2 share are used: the header of a record, the words of the
rings' ends, and the layout in the welcome.
"""
import array
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile

shim, daemon_dir, kernel = sys.argv[1:]
COMMAND_TAIL, REPLY_TAIL = 4096, 4096 + 384
COPY_TO_HOST = 50


def receive(sock):
    fds = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(8192, socket.CMSG_SPACE(8 * fds.itemsize))
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload)
    return data, list(fds)


def records(memory, start, capacity, tail):
    if tail > capacity:
        sys.exit("record: the ring has gone round: the program says too much")
    at, found = 0, []
    while at < tail:
        length, kind, flags, sequence = struct.unpack_from("<IHHQ", memory, start + at)
        body = memory[start + at + 16 : start + at + length]
        found.append({"kind": kind, "flags": flags, "sequence": sequence, "body": body.hex()})
        at += (length + 7) // 8 * 8
    return found


with tempfile.TemporaryDirectory() as folder:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(folder + "/partitad.sock")
    listener.listen(8)
    program = subprocess.Popen(
        [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py"), kernel],
        env={**os.environ, "PARTITA_SOCKET_DIR": folder, "LD_PRELOAD": os.path.abspath(shim), "PARTITA_APP": ""},
    )
    client, _ = listener.accept()
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon.connect(daemon_dir + "/partitad.sock")
    hello, _ = receive(client)
    daemon.send(hello)
    answer, (memfd, bell) = receive(daemon)
    client.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memfd, bell]))])
    os.close(bell)
    client.close()
    if program.wait() != 0:
        sys.exit("record: the program failed")

# Magic, version and kind; features, session and window; then the layout.
minor = struct.unpack_from("<H", hello, 6)[0]
total, _, _, command, command_bytes, reply, reply_bytes, staging = struct.unpack_from("<8Q", answer, 12 + 4 * 8)
memory = mmap.mmap(memfd, total, prot=mmap.PROT_READ)
tail = lambda at: struct.unpack_from("<Q", memory, at)[0]
requests = records(memory, command, command_bytes, tail(COMMAND_TAIL))
copies = [bytes.fromhex(request["body"]) for request in requests if request["kind"] == COPY_TO_HOST]
_, to, _, size = struct.unpack("<4Q", copies[-1])
print(
    json.dumps(
        {
            "minor": minor,
            "hello": hello.hex(),
            "answer": answer.hex(),
            "requests": requests,
            "replies": records(memory, reply, reply_bytes, tail(REPLY_TAIL)),
            "result": {"offset": to, "bytes": memory[staging + to : staging + to + size].hex()},
        },
        indent=0,
    )
)
