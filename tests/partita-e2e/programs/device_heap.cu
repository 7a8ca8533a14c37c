// Allocation inside kernels: trees built with new, lists that outlive their kernel and are freed by another one.
#include "check.h"

struct Node {
    int key;
    Node *left, *right;
    __device__ explicit Node(int k) : key(k), left(nullptr), right(nullptr) {}
};

__device__ void insert(Node **root, int key) {
    while (*root != nullptr) root = key < (*root)->key ? &(*root)->left : &(*root)->right;
    *root = new Node(key);
}

__device__ int writeSorted(const Node *node, int *out, int place) {
    if (node == nullptr) return place;
    place = writeSorted(node->left, out, place);
    out[place++] = node->key;
    return writeSorted(node->right, out, place);
}

__device__ void destroy(Node *node) {
    if (node == nullptr) return;
    destroy(node->left);
    destroy(node->right);
    delete node;
}

__global__ void sortByTree(int *data, int size, int *failed) {
    int *mine = data + (blockIdx.x * blockDim.x + threadIdx.x) * size;
    Node *root = nullptr;
    for (int i = 0; i < size; i++) insert(&root, mine[i]);
    if (root == nullptr || writeSorted(root, mine, 0) != size) atomicAdd(failed, 1);
    destroy(root);
}

struct Link {
    int value;
    Link *next;
};

__global__ void push(Link **heads, int each) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < each; k++) heads[i] = new Link{i * each + k, heads[i]};
}

__global__ void popAll(Link **heads, long long *sums) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    long long sum = 0;
    for (Link *link = heads[i]; link != nullptr;) {
        Link *next = link->next;
        sum += link->value;
        delete link;
        link = next;
    }
    sums[i] = sum;
}

__global__ void tooMuch(int *refused) {
    void *huge = malloc(1ull << 40);
    *refused = huge == nullptr;
    free(huge);
}

int main() {
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    const int threads = 128, size = 24;
    Random random;
    std::vector<int> data(threads * size);
    for (int &value : data) value = static_cast<int>(random.below(10000));
    int *device = upload(data), *failed = upload(std::vector<int>{0});
    sortByTree<<<4, threads / 4>>>(device, size, failed);
    CHECK(cudaGetLastError());
    std::vector<int> sorted = download(device, data.size());
    expect(download(failed, 1)[0] == 0, "%d trees failed", download(failed, 1)[0]);
    for (int t = 0; t < threads; t++)
        for (int i = 0; i < size; i++) {
            int before = 0, found = 0, value = sorted[t * size + i];
            for (int k = 0; k < size; k++) {
                found += data[t * size + k] == value;
                before += data[t * size + k] < value;
            }
            expect(found > 0 && before <= i && i < before + found, "tree %d, place %d: %d", t, i, value);
        }

    const int each = 10;
    Link **heads = upload(std::vector<Link *>(threads, nullptr));
    long long *sums = blank<long long>(threads);
    for (int round = 0; round < 3; round++) push<<<2, threads / 2>>>(heads, each);
    popAll<<<8, threads / 8>>>(heads, sums);
    CHECK(cudaGetLastError());
    std::vector<long long> found = download(sums, threads);
    for (int i = 0; i < threads; i++) {
        long long expected = 3ll * (i * each * each + each * (each - 1) / 2);
        expect(found[i] == expected, "list %d: %lld, expected %lld", i, found[i], expected);
    }
    int *refused = blank<int>(1);
    tooMuch<<<1, 1>>>(refused);
    CHECK(cudaGetLastError());
    expect(download(refused, 1)[0] == 1, "a terabyte was given");
    std::printf("device_heap trees=%d lists=%d\n", threads, threads);
    return verdict();
}
