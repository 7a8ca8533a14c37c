// Two processes that share memory: a child, the socket to it, and kernels that show whose work has been done.
#pragma once

#include "check.h"
#include <cstring>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

__global__ void count(unsigned *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = i;
}

__global__ void triple(unsigned *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * 3 + 1;
}

void expect_all(const unsigned *device, int n, unsigned factor, unsigned plus, const char *when) {
    auto host = download(device, n);
    for (int i = 0; i < n; i++)
        if (!expect(host[i] == unsigned(i) * factor + plus, "%s: %u at %d", when, host[i], i)) return;
}

int line = -1;

template <class T>
void say(const T &what) {
    if (write(line, &what, sizeof(T)) != ssize_t(sizeof(T))) std::exit(2);
}

template <class T = char>
T hear() {
    T what;
    if (read(line, &what, sizeof(T)) != ssize_t(sizeof(T))) {
        std::fprintf(stderr, "the other process has gone\n");
        std::exit(2);
    }
    return what;
}

struct Message {
    char byte = 'f';
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec piece = {&byte, 1};
    msghdr header = {};
    Message() {
        header.msg_iov = &piece;
        header.msg_iovlen = 1;
        header.msg_control = control;
        header.msg_controllen = sizeof(control);
    }
};

void send_file(int file) {
    Message message;
    cmsghdr *control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &file, sizeof(int));
    if (sendmsg(line, &message.header, 0) != 1) std::exit(2);
}

int receive_file() {
    Message message;
    int file = -1;
    if (recvmsg(line, &message.header, 0) != 1) std::exit(2);
    std::memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message.header)), sizeof(int));
    return file;
}

// Starts the program once more; its argument is the number of its end of the socket.
pid_t start_child(char *program) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::exit(2);
    pid_t process = fork();
    if (process == 0) {
        close(ends[0]);
        char number[16];
        std::snprintf(number, sizeof(number), "%d", ends[1]);
        execl("/proc/self/exe", program, number, nullptr);
        _exit(127);
    }
    close(ends[1]);
    line = ends[0];
    return process;
}
