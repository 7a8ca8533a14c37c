// A launch that ends when the test says so, however slow the machine is: blocks without end look at a word of host memory
// and return as soon as it is not 0. A thread sets the word when standard input ends.
#pragma once

#include <thread>
#include <unistd.h>

// Blocks of a held launch: more than a minute of work for the emulator, about a second where they return at once.
constexpr unsigned HELD_BLOCKS = 1u << 16;

struct Hold {
    // In host memory that kernels can read.
    int *enough = nullptr;
    std::thread reader;

    void begin() {
        *enough = 0;
        reader = std::thread([this] {
            char ignored;
            while (read(STDIN_FILENO, &ignored, 1) > 0) {
            }
            *const_cast<volatile int *>(enough) = 1;
        });
    }
    ~Hold() {
        if (reader.joinable()) reader.join();
    }
};
