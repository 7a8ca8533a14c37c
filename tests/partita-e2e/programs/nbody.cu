// Gravitation between all pairs of bodies, tiles of positions in shared memory, leapfrog steps.
#include "check.h"

const int BODIES = 768, BLOCK = 128, STEPS = 4;
const float STEP = 0.01f, SOFTENING = 0.05f;

__global__ void accelerate(const float4 *positions, float4 *velocities, int n) {
    __shared__ float4 tile[BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x;
    float4 self = positions[i];
    float3 sum = make_float3(0, 0, 0);
    for (int first = 0; first < n; first += BLOCK) {
        tile[threadIdx.x] = positions[first + threadIdx.x];
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < BLOCK; j++) {
            float4 other = tile[j];
            float dx = other.x - self.x, dy = other.y - self.y, dz = other.z - self.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + SOFTENING);
            float pull = other.w * inverse * inverse * inverse;
            sum.x += pull * dx;
            sum.y += pull * dy;
            sum.z += pull * dz;
        }
        __syncthreads();
    }
    float4 velocity = velocities[i];
    velocity.x += STEP * sum.x;
    velocity.y += STEP * sum.y;
    velocity.z += STEP * sum.z;
    velocities[i] = velocity;
}

__global__ void drift(float4 *positions, const float4 *velocities) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    positions[i].x += STEP * velocities[i].x;
    positions[i].y += STEP * velocities[i].y;
    positions[i].z += STEP * velocities[i].z;
}

struct Body {
    double x, y, z, mass, vx, vy, vz;
};

int main() {
    Random random;
    std::vector<float4> positions(BODIES), velocities(BODIES);
    std::vector<Body> bodies(BODIES);
    for (int i = 0; i < BODIES; i++) {
        positions[i] = make_float4(random.unit(), random.unit(), random.unit(), random.unit() / BODIES);
        velocities[i] = make_float4(random.unit() - 0.5f, random.unit() - 0.5f, random.unit() - 0.5f, 0);
        bodies[i] = {positions[i].x, positions[i].y, positions[i].z, positions[i].w,
                     velocities[i].x, velocities[i].y, velocities[i].z};
    }
    float4 *dPositions = upload(positions), *dVelocities = upload(velocities);
    for (int step = 0; step < STEPS; step++) {
        accelerate<<<BODIES / BLOCK, BLOCK>>>(dPositions, dVelocities, BODIES);
        drift<<<BODIES / BLOCK, BLOCK>>>(dPositions, dVelocities);
    }
    CHECK(cudaGetLastError());
    positions = download(dPositions, BODIES);
    velocities = download(dVelocities, BODIES);

    for (int step = 0; step < STEPS; step++) {
        for (Body &body : bodies) {
            double sx = 0, sy = 0, sz = 0;
            for (const Body &other : bodies) {
                double dx = other.x - body.x, dy = other.y - body.y, dz = other.z - body.z;
                double square = dx * dx + dy * dy + dz * dz + SOFTENING;
                double pull = other.mass / (square * std::sqrt(square));
                sx += pull * dx;
                sy += pull * dy;
                sz += pull * dz;
            }
            body.vx += STEP * sx;
            body.vy += STEP * sy;
            body.vz += STEP * sz;
        }
        for (Body &body : bodies) {
            body.x += STEP * body.vx;
            body.y += STEP * body.vy;
            body.z += STEP * body.vz;
        }
    }
    // Floats against doubles: some hundred roundings of 2^-24 in sums of order one, damped by the step.
    double sum = 0;
    for (int i = 0; i < BODIES; i++) {
        const Body &body = bodies[i];
        bool near = close(positions[i].x, body.x, 1e-6) && close(positions[i].y, body.y, 1e-6) &&
                    close(positions[i].z, body.z, 1e-6) && close(velocities[i].x, body.vx, 2e-6) &&
                    close(velocities[i].y, body.vy, 2e-6) && close(velocities[i].z, body.vz, 2e-6);
        expect(near, "body %d at (%g, %g, %g), expected (%g, %g, %g)", i, positions[i].x, positions[i].y, positions[i].z,
               body.x, body.y, body.z);
        sum += positions[i].x;
    }
    std::printf("nbody n=%d steps=%d mean x=%.5f\n", BODIES, STEPS, sum / BODIES);
    return verdict();
}
