// A step of the lattice Boltzmann method with 19 velocities (D3Q19) in a lid-driven cavity's bulk: each cell reads what streams
// in from its neighbours, relaxes it towards equilibrium and writes it. One array per velocity, so that accesses coalesce.
// Idea: BGK collision (Qian, d'Humieres and Lallemand 1992); LBM of CD-search Table 1 (Parboil's subject).
// Sizes: 120 cells across, a CTA of 120 threads a row as in the table; 40 x 20 rows, periodic.
#define WIDTH 120
#define HEIGHT 40
#define DEPTH 20
#define CELLS (WIDTH * HEIGHT * DEPTH)

// Velocity k along an axis. All uses are with numbers known to the compiler.
__device__ constexpr int velocity(int k, int axis) {
    constexpr int table[19][3] = {{0, 0, 0},  {1, 0, 0},   {-1, 0, 0}, {0, 1, 0},   {0, -1, 0}, {0, 0, 1},  {0, 0, -1},
                                  {1, 1, 0},  {-1, -1, 0}, {1, -1, 0}, {-1, 1, 0},  {1, 0, 1},  {-1, 0, -1}, {1, 0, -1},
                                  {-1, 0, 1}, {0, 1, 1},   {0, -1, -1}, {0, 1, -1}, {0, -1, 1}};
    return table[k][axis];
}

extern "C" __global__ void lbm(const float *from, float *to, float omega) {
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    // Where the neighbours lie before, at and after this cell on each axis.
    int columns[3] = {x == 0 ? WIDTH - 1 : x - 1, x, x == WIDTH - 1 ? 0 : x + 1};
    int rows[3] = {(y == 0 ? HEIGHT - 1 : y - 1) * WIDTH, y * WIDTH, (y == HEIGHT - 1 ? 0 : y + 1) * WIDTH};
    int planes[3] = {z == 0 ? DEPTH - 1 : z - 1, z, z == DEPTH - 1 ? 0 : z + 1};
    for (int k = 0; k < 3; k++) planes[k] *= HEIGHT * WIDTH;
    float f[19], density = 0, ux = 0, uy = 0, uz = 0;
#pragma unroll
    for (int k = 0; k < 19; k++) {
        int cx = velocity(k, 0), cy = velocity(k, 1), cz = velocity(k, 2);
        f[k] = from[k * CELLS + planes[1 - cz] + rows[1 - cy] + columns[1 - cx]];
        density += f[k];
        ux += cx * f[k], uy += cy * f[k], uz += cz * f[k];
    }
    float inverse = 1.0f / density;
    ux *= inverse, uy *= inverse, uz *= inverse;
    float speed = 1.5f * (ux * ux + uy * uy + uz * uz);
    int cell = (z * HEIGHT + y) * WIDTH + x;
#pragma unroll
    for (int k = 0; k < 19; k++) {
        float weight = k == 0 ? 1.0f / 3 : k < 7 ? 1.0f / 18 : 1.0f / 36;
        float along = 3.0f * (velocity(k, 0) * ux + velocity(k, 1) * uy + velocity(k, 2) * uz);
        float equilibrium = weight * density * (1.0f + along + 0.5f * along * along - speed);
        to[k * CELLS + cell] = f[k] + omega * (equilibrium - f[k]);
    }
}
