// Does what a plan says with the driver: loads modules, makes memory and fills it, launches kernels, fetches the memory, and prints
// the host's nanoseconds in the calls of each part: "LOAD SETUP LAUNCH FINISH". LAUNCH ends when all launches have.
// Usage: funnel PLAN
// The plan's lines: module PATH | variable MODULE NAME PATH | buffer BYTES PATH | launches COUNT |
// step MODULE KERNEL GX GY GZ BX BY BZ SHARED PARAMETERS POINTERS (AT BUFFER OFFSET)...
// PARAMETERS are hexadecimal, "-" where there are none. A path without contents is "-".
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

typedef unsigned long long Address;

static void *library;

template <class Function> static Function entry(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        std::fprintf(stderr, "%s: %s\n", name, dlerror());
        std::exit(1);
    }
    return (Function)found;
}

static void check(int result, const char *what) {
    if (result == 0) return;
    std::fprintf(stderr, "%s: error %d\n", what, result);
    std::exit(1);
}

struct Step {
    void *function;
    unsigned shape[6], shared;
    std::vector<char> parameters;
};

static std::vector<char> contents(const std::string &path) {
    if (path == "-") return {};
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        std::fprintf(stderr, "%s cannot be read\n", path.c_str());
        std::exit(1);
    }
    return {std::istreambuf_iterator<char>(file), {}};
}

typedef std::chrono::steady_clock Clock;

static long long since(Clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: funnel PLAN\n");
        return 2;
    }
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    auto init = entry<int (*)(unsigned)>("cuInit");
    auto retain = entry<int (*)(void **, int)>("cuDevicePrimaryCtxRetain");
    auto current = entry<int (*)(void *)>("cuCtxSetCurrent");
    auto load = entry<int (*)(void **, const void *)>("cuModuleLoadData");
    auto kernel = entry<int (*)(void **, void *, const char *)>("cuModuleGetFunction");
    auto variable = entry<int (*)(Address *, size_t *, void *, const char *)>("cuModuleGetGlobal_v2");
    auto allocate = entry<int (*)(Address *, size_t)>("cuMemAlloc_v2");
    auto upload = entry<int (*)(Address, const void *, size_t)>("cuMemcpyHtoD_v2");
    auto download = entry<int (*)(void *, Address, size_t)>("cuMemcpyDtoH_v2");
    auto release = entry<int (*)(Address)>("cuMemFree_v2");
    auto synchronize = entry<int (*)()>("cuCtxSynchronize");
    auto launch = entry<int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)>("cuLaunchKernel");

    check(init(0), "cuInit");
    void *context;
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(current(context), "cuCtxSetCurrent");

    std::ifstream plan(argv[1]);
    std::vector<void *> modules;
    std::vector<Address> buffers;
    std::vector<size_t> sizes;
    std::vector<Step> steps;
    long long loading = 0, setting_up = 0;
    unsigned long long launches = 0;
    for (std::string line; std::getline(plan, line);) {
        std::istringstream words(line);
        std::string kind;
        words >> kind;
        if (kind == "module") {
            std::string path;
            words >> path;
            std::vector<char> text = contents(path);
            text.push_back(0);
            void *module;
            auto begin = Clock::now();
            check(load(&module, text.data()), "cuModuleLoadData");
            loading += since(begin);
            modules.push_back(module);
        } else if (kind == "variable") {
            size_t index, bytes;
            std::string name, path;
            words >> index >> name >> path;
            std::vector<char> first = contents(path);
            Address at;
            auto begin = Clock::now();
            check(variable(&at, &bytes, modules.at(index), name.c_str()), "cuModuleGetGlobal");
            check(upload(at, first.data(), first.size()), "cuMemcpyHtoD");
            setting_up += since(begin);
        } else if (kind == "buffer") {
            size_t bytes;
            std::string path;
            words >> bytes >> path;
            std::vector<char> first = contents(path);
            Address at;
            auto begin = Clock::now();
            check(allocate(&at, bytes), "cuMemAlloc");
            if (!first.empty()) check(upload(at, first.data(), first.size()), "cuMemcpyHtoD");
            setting_up += since(begin);
            buffers.push_back(at);
            sizes.push_back(bytes);
        } else if (kind == "step") {
            size_t index, pointers;
            std::string name, hexadecimal;
            Step step;
            words >> index >> name;
            for (unsigned &number : step.shape) words >> number;
            words >> step.shared >> hexadecimal >> pointers;
            for (size_t at = 0; hexadecimal != "-" && at + 1 < hexadecimal.size(); at += 2)
                step.parameters.push_back((char)std::stoi(hexadecimal.substr(at, 2), nullptr, 16));
            for (; pointers > 0; pointers--) {
                size_t at, buffer;
                Address offset;
                words >> at >> buffer >> offset;
                offset += buffers.at(buffer);
                std::memcpy(&step.parameters.at(at), &offset, sizeof offset);
            }
            check(kernel(&step.function, modules.at(index), name.c_str()), "cuModuleGetFunction");
            steps.push_back(step);
        } else if (kind == "launches") {
            words >> launches;
        }
    }
    if (steps.empty()) {
        std::fprintf(stderr, "%s has no step\n", argv[1]);
        return 1;
    }

    auto begin = Clock::now();
    for (unsigned long long count = 0; count < launches; count++) {
        Step &step = steps[count % steps.size()];
        size_t bytes = step.parameters.size();
        // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END.
        void *extra[] = {(void *)1, step.parameters.data(), (void *)2, &bytes, nullptr};
        const unsigned *s = step.shape;
        check(launch(step.function, s[0], s[1], s[2], s[3], s[4], s[5], step.shared, nullptr, nullptr, extra), "cuLaunchKernel");
    }
    check(synchronize(), "cuCtxSynchronize");
    long long launching = since(begin);
    begin = Clock::now();
    for (size_t index = 0; index < buffers.size(); index++) {
        std::vector<char> result(sizes[index]);
        check(download(result.data(), buffers[index], sizes[index]), "cuMemcpyDtoH");
        check(release(buffers[index]), "cuMemFree");
    }
    std::printf("%lld %lld %lld %lld\n", loading, setting_up, launching, since(begin));
    return 0;
}
