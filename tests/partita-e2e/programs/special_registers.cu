// What a thread can ask about itself and the clock: lanes, masks, warps, SMs, clocks that go forward.
#include "check.h"

struct Facts {
    unsigned int lane, lanesBelow, lanesUpTo, lanesAbove, lanesFrom, warp, warps, sm, sms, size;
    long long clocks, nanoseconds;
};

#define REGISTER(name, constraint, type, width)                                                      \
    __device__ type name() {                                                                         \
        type value;                                                                                  \
        asm volatile("mov." width " %0, %%" #name ";" : "=" constraint(value));                      \
        return value;                                                                                \
    }
REGISTER(laneid, "r", unsigned int, "u32")
REGISTER(lanemask_lt, "r", unsigned int, "u32")
REGISTER(lanemask_le, "r", unsigned int, "u32")
REGISTER(lanemask_gt, "r", unsigned int, "u32")
REGISTER(lanemask_ge, "r", unsigned int, "u32")
REGISTER(warpid, "r", unsigned int, "u32")
REGISTER(nwarpid, "r", unsigned int, "u32")
REGISTER(smid, "r", unsigned int, "u32")
REGISTER(nsmid, "r", unsigned int, "u32")
REGISTER(globaltimer, "l", unsigned long long, "u64")

__global__ void ask(Facts *out, float *sink) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    long long begin = clock64();
    unsigned long long timer = globaltimer();
    float value = static_cast<float>(i);
    for (int k = 0; k < 200; k++) value = value * 1.0001f + 0.5f;
    sink[i] = value;
    __threadfence();
    Facts f;
    f.clocks = clock64() - begin;
    f.nanoseconds = static_cast<long long>(globaltimer() - timer);
    f.lane = laneid();
    f.lanesBelow = lanemask_lt();
    f.lanesUpTo = lanemask_le();
    f.lanesAbove = lanemask_gt();
    f.lanesFrom = lanemask_ge();
    f.warp = warpid();
    f.warps = nwarpid();
    f.sm = smid();
    f.sms = nsmid();
    f.size = warpSize;
    out[i] = f;
}

int main() {
    int device, processors;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    const int blocks = 4 * processors, size = 96, n = blocks * size;
    Facts *out = blank<Facts>(n);
    ask<<<blocks, size>>>(out, blank<float>(n));
    CHECK(cudaGetLastError());
    std::vector<Facts> found = download(out, n);
    std::vector<int> used(processors, 0);
    int busy = 0;
    for (int i = 0; i < n; i++) {
        const Facts &f = found[i];
        unsigned int lane = i % size % 32, below = (1u << lane) - 1;
        expect(f.lane == lane && f.size == 32, "lane %u of %d", f.lane, i);
        expect(f.lanesBelow == below && f.lanesUpTo == (below | 1u << lane) && f.lanesFrom == ~below &&
                   f.lanesAbove == ~(below | 1u << lane), "masks of lane %u", lane);
        expect(f.warp < f.warps, "warp %u of %u", f.warp, f.warps);
        // %nsmid may be more than there are, for SM numbers need not be contiguous.
        expect(f.sm < f.sms && static_cast<int>(f.sms) >= processors, "SM %u of %u", f.sm, f.sms);
        if (static_cast<int>(f.sm) < processors && used[f.sm]++ == 0) busy++;
        // 200 dependent operations cannot take less than a cycle each.
        expect(f.clocks >= 200 && f.clocks < 100000000, "%lld cycles", f.clocks);
        expect(f.nanoseconds >= 0 && f.nanoseconds < 1000000000, "%lld ns", f.nanoseconds);
        expect(f.sm == found[i / size * size].sm, "block %d is on two SMs", i / size);
    }
    expect(busy > 0, "no SM was seen");
    std::printf("special_registers threads=%d\n", n);
    return verdict();
}
