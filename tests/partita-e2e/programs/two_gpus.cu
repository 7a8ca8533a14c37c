// Uses every device: in turns by one thread, by a thread for each, with copies between them and streams that wait for
// the other's events.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cudaError_t error = (call);                                                                         \
        if (error != cudaSuccess) {                                                                         \
            std::printf("FAILED line %d: %s: %s\n", __LINE__, #call, cudaGetErrorName(error));               \
            std::exit(1);                                                                                   \
        }                                                                                                   \
    } while (0)

#define EXPECT(condition)                                                                                   \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            std::printf("FAILED line %d: %s\n", __LINE__, #condition);                                       \
            std::exit(1);                                                                                   \
        }                                                                                                   \
    } while (0)

constexpr int COUNT = 5003;

__device__ int total;
__constant__ int step;

__global__ void add(int *data, int count, int value) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        data[index] += value + step;
    if (index == 0)
        atomicAdd(&total, 1);
}

__global__ void spin(int *data, int rounds) {
    int value = data[0];
    for (int round = 0; round < rounds; ++round)
        value = value * 1664525 + 1013904223;
    // The rounds must not be optimised away, and change nothing.
    data[1] = value == 12345 ? 1 : 0;
    data[0] += 1;
}

static void launch(int *data, int value, cudaStream_t stream = 0) {
    add<<<(COUNT + 255) / 256, 256, 0, stream>>>(data, COUNT, value);
    CHECK(cudaGetLastError());
}

static void expect_all(const int *data, int value) {
    std::vector<int> found(COUNT);
    CHECK(cudaMemcpy(found.data(), data, COUNT * sizeof(int), cudaMemcpyDefault));
    for (int index = 0; index < COUNT; ++index)
        if (found[index] != value) {
            std::printf("FAILED element %d: %d and not %d\n", index, found[index], value);
            std::exit(1);
        }
}

static int *zeroes(int device) {
    int *data = nullptr;
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(&data, COUNT * sizeof(int)));
    CHECK(cudaMemset(data, 0, COUNT * sizeof(int)));
    return data;
}

// Each device has its own variables of a module, and pointers say whose they are.
static void in_turns(int devices) {
    std::vector<int *> data;
    for (int device = 0; device < devices; ++device) {
        data.push_back(zeroes(device));
        int of_device = 100 * device;
        CHECK(cudaMemcpyToSymbol(step, &of_device, sizeof of_device));
    }
    for (int round = 0; round < 5; ++round)
        for (int device = 0; device < devices; ++device) {
            CHECK(cudaSetDevice(device));
            launch(data[device], round);
        }
    for (int device = 0; device < devices; ++device) {
        cudaPointerAttributes attributes;
        CHECK(cudaPointerGetAttributes(&attributes, data[device]));
        EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.device == device);
        CHECK(cudaSetDevice(device));
        CHECK(cudaDeviceSynchronize());
        int launches = 0;
        CHECK(cudaMemcpyFromSymbol(&launches, total, sizeof launches));
        EXPECT(launches == 5);
    }
    // Whichever is current: the address says where from, and where to be freed.
    for (int device = 0; device < devices; ++device) {
        expect_all(data[device], 10 + 5 * 100 * device);
        CHECK(cudaFree(data[device]));
    }
    int zero = 0;
    for (int device = 0; device < devices; ++device) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaMemcpyToSymbol(step, &zero, sizeof zero));
    }
}

static void by_threads(int devices) {
    std::vector<std::thread> threads;
    for (int index = 0; index < 2 * devices; ++index)
        threads.emplace_back([=] {
            int device = index % devices;
            int *data = zeroes(device);
            cudaStream_t stream;
            CHECK(cudaStreamCreate(&stream));
            CHECK(cudaDeviceSynchronize());
            for (int round = 0; round < 5; ++round)
                launch(data, index, stream);
            CHECK(cudaStreamSynchronize(stream));
            int current = -1;
            CHECK(cudaGetDevice(&current));
            EXPECT(current == device);
            expect_all(data, 5 * index);
            CHECK(cudaStreamDestroy(stream));
            CHECK(cudaFree(data));
        });
    for (std::thread &thread : threads)
        thread.join();
}

static void copies(int from, int to) {
    int *source = zeroes(from), *target = zeroes(to);
    CHECK(cudaSetDevice(from));
    launch(source, 7);
    CHECK(cudaMemcpyPeer(target, to, source, from, COUNT * sizeof(int)));
    expect_all(target, 7);

    // In order with the stream that is named, whosever it is.
    for (int owner : {from, to}) {
        CHECK(cudaSetDevice(from));
        CHECK(cudaDeviceSynchronize());
        cudaStream_t stream;
        CHECK(cudaSetDevice(owner));
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        int *own = owner == from ? source : target;
        launch(own, 1, stream);
        CHECK(cudaMemcpyPeerAsync(target, to, source, from, COUNT * sizeof(int), stream));
        launch(own, 10, stream);
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaStreamDestroy(stream));
        if (owner == from) {
            expect_all(target, 8);
            expect_all(source, 18);
        } else {
            // What the stream did to the target before was copied over.
            expect_all(target, 28);
        }
    }

    // The program's own memory and another device's than the stream's.
    CHECK(cudaSetDevice(to));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    int *locked;
    CHECK(cudaMallocHost(&locked, COUNT * sizeof(int)));
    std::vector<int> pageable(COUNT, 3);
    CHECK(cudaMemcpyAsync(source, pageable.data(), COUNT * sizeof(int), cudaMemcpyHostToDevice, stream));
    std::fill(pageable.begin(), pageable.end(), 4);
    CHECK(cudaMemcpyAsync(locked, source, COUNT * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int index = 0; index < COUNT; ++index)
        EXPECT(locked[index] == 3);
    CHECK(cudaMemsetAsync(source, 0, COUNT * sizeof(int), stream));
    CHECK(cudaMemcpy(target, source, COUNT * sizeof(int), cudaMemcpyDefault));
    expect_all(target, 0);
    CHECK(cudaSetDevice(from));
    CHECK(cudaFreeHost(locked));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(source));
    CHECK(cudaFree(target));
}

// A chain that goes to and fro between two devices, all of it submitted at once.
static void waits(int first, int second) {
    int devices[2] = {first, second};
    int *data[2] = {zeroes(first), zeroes(second)};
    cudaStream_t streams[2];
    for (int side = 0; side < 2; ++side) {
        CHECK(cudaSetDevice(devices[side]));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaStreamCreateWithFlags(&streams[side], cudaStreamNonBlocking));
    }
    const int turns = 8;
    std::vector<cudaEvent_t> events;
    for (int turn = 0; turn < turns; ++turn) {
        int side = turn % 2, other = 1 - side;
        CHECK(cudaSetDevice(devices[side]));
        if (turn > 0)
            CHECK(cudaStreamWaitEvent(streams[side], events.back(), 0));
        // Takes what the other side has come to, and one more, after a while.
        CHECK(cudaMemcpyPeerAsync(data[side], devices[side], data[other], devices[other], sizeof(int), streams[side]));
        spin<<<1, 1, 0, streams[side]>>>(data[side], 2000);
        CHECK(cudaGetLastError());
        cudaEvent_t event;
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        CHECK(cudaEventRecord(event, streams[side]));
        events.push_back(event);
    }
    CHECK(cudaEventSynchronize(events.back()));
    int found = 0;
    CHECK(cudaMemcpy(&found, data[(turns - 1) % 2], sizeof found, cudaMemcpyDefault));
    EXPECT(found == turns);
    // Events of different devices have no time between them, nor can streams of other devices record them.
    float milliseconds;
    EXPECT(cudaEventElapsedTime(&milliseconds, events[0], events[1]) != cudaSuccess);
    EXPECT(cudaEventRecord(events[0], streams[1]) != cudaSuccess);
    CHECK(cudaSetDevice(first));
    EXPECT((spin<<<1, 1, 0, streams[1]>>>(data[0], 1), cudaGetLastError()) != cudaSuccess);
    for (cudaEvent_t event : events)
        CHECK(cudaEventDestroy(event));
    for (int side = 0; side < 2; ++side) {
        CHECK(cudaStreamDestroy(streams[side]));
        CHECK(cudaFree(data[side]));
    }
}

static void peers(int devices) {
    for (int device = 0; device < devices; ++device)
        for (int peer = 0; peer < devices; ++peer) {
            int can = -1;
            CHECK(cudaDeviceCanAccessPeer(&can, device, peer));
            EXPECT(can == 0);
            if (device != peer) {
                CHECK(cudaSetDevice(device));
                EXPECT(cudaDeviceEnablePeerAccess(peer, 0) == cudaErrorPeerAccessUnsupported);
                EXPECT(cudaDeviceDisablePeerAccess(peer) == cudaErrorPeerAccessNotEnabled);
                EXPECT(cudaGetLastError() != cudaSuccess);
            }
        }
}

int main(int argc, char **argv) {
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess) {
        std::printf("no devices: %s\n", cudaGetErrorName(error));
        return 0;
    }
    for (int device = 0; device < devices; ++device) {
        cudaDeviceProp properties;
        CHECK(cudaGetDeviceProperties(&properties, device));
        char bus[32];
        int found = -1;
        CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
        CHECK(cudaDeviceGetByPCIBusId(&found, bus));
        EXPECT(found == device);
        std::printf("device %d: %s, %d SMs, bus %s, uuid ", device, properties.name, properties.multiProcessorCount, bus);
        for (char byte : properties.uuid.bytes)
            std::printf("%02x", static_cast<unsigned char>(byte));
        std::printf("\n");
    }
    if (argc > 1 && std::strcmp(argv[1], "list") == 0)
        return 0;
    if (argc > 1 && std::strcmp(argv[1], "last") == 0) {
        int *data = zeroes(devices - 1);
        launch(data, 5);
        expect_all(data, 5);
        if (argc > 2) {
            // Until somebody ends it.
            for (;;)
                CHECK(cudaDeviceSynchronize());
        }
        std::printf("PASSED\n");
        return 0;
    }
    in_turns(devices);
    by_threads(devices);
    peers(devices);
    if (devices > 1) {
        copies(0, 1);
        copies(1, 0);
        waits(0, 1);
        waits(1, 0);
    }
    CHECK(cudaSetDevice(0));
    CHECK(cudaDeviceReset());
    int *data = zeroes(devices - 1);
    launch(data, 6);
    expect_all(data, 6);
    std::printf("PASSED\n");
    return 0;
}
