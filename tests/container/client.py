"""A CUDA program for tests/container.sh: launches a kernel again and again, and checks each result.

usage: partita run python3 client.py SPIN.PTX PROGRESS [LAUNCHES]

After each launch it writes the number of launches to the file PROGRESS. It ends after LAUNCHES launches, or
at SIGTERM, with 0; at the first error or wrong result with 1.
"""
import ctypes
import os
import signal
import sys

CTAS, THREADS, ROUNDS = 4, 64, 20
cuda = ctypes.CDLL(None)


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        sys.exit(f"client: {name} returned {code}")


def expected(x):
    for _ in range(ROUNDS):
        x = (x * 1664525 + 1013904223) % 2**32
    return x


def main():
    text, progress = open(sys.argv[1], "rb").read(), sys.argv[2]
    most = int(sys.argv[3]) if len(sys.argv) > 3 else 2**62
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    call("cuModuleLoadData", ctypes.byref(module), text)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    count = CTAS * THREADS
    data, rounds = ctypes.c_uint64(), ctypes.c_uint32(ROUNDS)
    call("cuMemAlloc_v2", ctypes.byref(data), ctypes.c_size_t(4 * count))
    params = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(rounds))
    right = [expected(x) for x in range(count)]
    launches = 0
    while launches < most and not ended:
        call("cuMemsetD32_v2", data, 0, ctypes.c_size_t(count))
        call("cuLaunchKernel", kernel, CTAS, 1, 1, THREADS, 1, 1, 0, None, params, None)
        found = (ctypes.c_uint32 * count)()
        call("cuMemcpyDtoH_v2", found, data, ctypes.c_size_t(4 * count))
        if list(found) != right:
            sys.exit(f"client: launch {launches} computed something else")
        launches += 1
        with open(progress + ".new", "w") as file:
            file.write(str(launches))
        os.replace(progress + ".new", progress)


main()
