// Managed memory: a linked list and an array that host and device both use through the same pointers, and a __managed__
// variable.
#include "check.h"

struct Node {
    int value;
    Node *next;
};

__managed__ int visits = 5;
__managed__ float weights[4] = {1, 2, 3, 4};

__global__ void walk(Node *head, int *sums) {
    int sum = 0, place = 0;
    for (Node *node = head; node != nullptr; node = node->next, place++) {
        if (place % blockDim.x == threadIdx.x) {
            sum += node->value;
            node->value = -node->value;
        }
    }
    sums[threadIdx.x] = sum;
    atomicAdd(&visits, 1);
}

__global__ void weigh(float *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= weights[i % 4];
}

int main() {
    const int nodes = 100, n = 1000;
    Node *head = nullptr;
    long total = 0;
    for (int i = 0; i < nodes; i++) {
        Node *node;
        CHECK(cudaMallocManaged(&node, sizeof(Node)));
        *node = {i * i, head};
        head = node;
        total += i * i;
    }
    int *sums;
    CHECK(cudaMallocManaged(&sums, 32 * sizeof(int)));
    walk<<<1, 32>>>(head, sums);
    CHECK(cudaDeviceSynchronize());
    long found = 0, after = 0;
    for (int i = 0; i < 32; i++) found += sums[i];
    for (Node *node = head; node != nullptr; node = node->next) after += node->value;
    expect(found == total, "sum %ld, expected %ld", found, total);
    expect(after == -total, "the host sees %ld, expected %ld", after, -total);
    expect(visits == 37, "visits %d, expected 37", visits);

    float *data;
    CHECK(cudaMallocManaged(&data, n * sizeof(float)));
    for (int i = 0; i < n; i++) data[i] = static_cast<float>(i);
    weights[3] = 10;
    weigh<<<(n + 127) / 128, 128>>>(data, n);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++) {
        float expected = static_cast<float>(i) * (i % 4 == 3 ? 10.0f : static_cast<float>(i % 4 + 1));
        expect(data[i] == expected, "%d: %g, expected %g", i, data[i], expected);
    }
    while (head != nullptr) {
        Node *next = head->next;
        CHECK(cudaFree(head));
        head = next;
    }
    std::printf("managed nodes=%d sum=%ld visits=%d\n", nodes, found, visits);
    return verdict();
}
