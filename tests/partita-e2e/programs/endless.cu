// A kernel that never ends; the program says when it has started it.
#include "check.h"

__global__ void endless(volatile int *flag) {
    while (*flag == 0) {
    }
}

int main() {
    int *flag = upload(std::vector<int>(1, 0));
    endless<<<1024, 128>>>(flag);
    std::printf("endless\n");
    std::fflush(stdout);
    CHECK(cudaDeviceSynchronize());
    return verdict();
}
