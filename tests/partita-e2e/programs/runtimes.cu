// Several runtime libraries in one process: the program's own, and those of the libraries named by its arguments, which work on
// its memory, in its streams, after its events; opened, closed and opened again, from many threads, and open at the end.
#include "check.h"
#include <dlfcn.h>
#include <set>
#include <thread>

using Plug = int (*)(int *, int, int, cudaStream_t, cudaEvent_t);

struct Library {
    void *handle;
    Plug plug;
    int (*version)();
    explicit Library(const char *path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        if (handle == nullptr) {
            std::printf("%s\nFAILED\n", dlerror());
            std::exit(1);
        }
        plug = reinterpret_cast<Plug>(dlsym(handle, "plug"));
        version = reinterpret_cast<int (*)()>(dlsym(handle, "plugVersion"));
    }
};

__device__ int total;

__global__ void triple(int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= 3;
    if (i == 0) atomicAdd(&total, 1);
}

const int n = 5000;

// The program's kernel, the library's two additions, the program's kernel.
void together(const Library &library, int by, int sum) {
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&event));
    std::vector<int> host(n);
    for (int i = 0; i < n; i++) host[i] = i;
    int *data = upload(host);
    triple<<<(n + 255) / 256, 256, 0, stream>>>(data, n);
    CHECK(cudaEventRecord(event, stream));
    int answer = library.plug(data, n, by, stream, event);
    expect(answer == sum, "version %d: sum %d, expected %d", library.version(), answer, sum);
    triple<<<(n + 255) / 256, 256, 0, stream>>>(data, n);
    CHECK(cudaStreamSynchronize(stream));
    host = download(data, n);
    for (int i = 0; i < n; i++) expect(host[i] == 9 * i + 12 * by, "%d: %d", i, host[i]);
    CHECK(cudaFree(data));
    CHECK(cudaEventDestroy(event));
    CHECK(cudaStreamDestroy(stream));
}

static std::vector<Library> open_at_the_end;

int main(int count, char **arguments) {
    // Runs when some of the runtimes have been taken down: any answer will do.
    std::atexit([] {
        for (const Library &library : open_at_the_end) library.version();
        cudaDeviceSynchronize();
    });
    std::set<int> versions;
    int own;
    CHECK(cudaRuntimeGetVersion(&own));
    versions.insert(own);
    for (int round = 1; round <= 2; round++) {
        for (int index = 1; index < count; index++) {
            Library library(arguments[index]);
            versions.insert(library.version());
            // Each loading begins with the variables' first values.
            together(library, 5 + index, 2 * (5 + index));
            together(library, 7, 2 * (5 + index) + 14);
            dlclose(library.handle);
        }
    }
    for (int index = 1; index < count; index++) open_at_the_end.emplace_back(arguments[index]);
    std::vector<std::thread> threads;
    for (const Library &library : open_at_the_end)
        threads.emplace_back([&library] {
            for (int turn = 1; turn <= 5; turn++) together(library, 3, 6 * turn);
        });
    for (std::thread &thread : threads) thread.join();
    int called, expected = 2 * ((count - 1) * 2 * 2 + (count - 1) * 5);
    CHECK(cudaMemcpyFromSymbol(&called, total, sizeof called));
    expect(called == expected, "%d launches, expected %d", called, expected);
    std::printf("runtimes libraries=%d versions=%zu\n", count - 1, versions.size());
    return verdict();
}
