// A child process on a socket, through which file descriptors pass.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int line = -1;

void say(char what) {
    if (write(line, &what, 1) != 1) std::exit(2);
}

void hear() {
    char what;
    if (read(line, &what, 1) != 1) {
        std::fprintf(stderr, "the other process has gone\n");
        std::exit(2);
    }
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

template <class T>
void say_all(const T &what) {
    if (write(line, &what, sizeof(T)) != ssize_t(sizeof(T))) std::exit(2);
}

template <class T>
T hear_all() {
    T what;
    if (read(line, &what, sizeof(T)) != ssize_t(sizeof(T))) {
        std::fprintf(stderr, "the other process has gone\n");
        std::exit(2);
    }
    return what;
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
