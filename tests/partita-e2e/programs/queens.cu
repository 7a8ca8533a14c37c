// Queens on a board, all solutions counted by backtracking with a stack in local memory; each thread takes one pair of
// places in the first two rows.
#include "check.h"

const int SIZE = 9;

__global__ void countSolutions(unsigned int *total, unsigned int *perThread) {
    int first = blockIdx.x, second = threadIdx.x, place[SIZE + 1];
    unsigned int solutions = 0;
    bool attacked = first == second || first + 1 == second || first - 1 == second;
    if (!attacked) {
        place[0] = first;
        place[1] = second;
        place[2] = -1;
        for (int row = 2; row >= 2;) {
            place[row]++;
            if (place[row] == SIZE) {
                row--;
                continue;
            }
            bool safe = true;
            for (int above = 0; above < row && safe; above++) {
                int difference = place[above] - place[row];
                safe = difference != 0 && difference != row - above && difference != above - row;
            }
            if (!safe) continue;
            if (row == SIZE - 1)
                solutions++;
            else
                place[++row] = -1;
        }
    }
    perThread[first * SIZE + second] = solutions;
    atomicAdd(total, solutions);
}

unsigned int solve(int row, unsigned int columns, unsigned int left, unsigned int right) {
    if (row == SIZE) return 1;
    unsigned int count = 0;
    for (int column = 0; column < SIZE; column++) {
        unsigned int bit = 1u << column;
        if (((columns | left | right) & bit) == 0) count += solve(row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1);
    }
    return count;
}

int main() {
    unsigned int *total = upload(std::vector<unsigned int>{0}), *perThread = blank<unsigned int>(SIZE * SIZE);
    countSolutions<<<SIZE, SIZE>>>(total, perThread);
    CHECK(cudaGetLastError());
    unsigned int found = download(total, 1)[0];
    std::vector<unsigned int> parts = download(perThread, SIZE * SIZE);
    expect(found == 352, "%u solutions, known are 352", found);
    for (int first = 0; first < SIZE; first++)
        for (int second = 0; second < SIZE; second++) {
            unsigned int a = 1u << first, b = 1u << second, expected = 0;
            if (((a | a << 1 | a >> 1) & b) == 0) expected = solve(2, a | b, (a << 1 | b) << 1, (a >> 1 | b) >> 1);
            expect(parts[first * SIZE + second] == expected, "(%d, %d): %u, expected %u", first, second,
                   parts[first * SIZE + second], expected);
        }
    std::printf("queens size=%d solutions=%u\n", SIZE, found);
    return verdict();
}
