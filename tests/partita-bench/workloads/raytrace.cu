// A picture of spheres over a plane: one ray a pixel, its shadow and one reflection.
// Masola Table 2: 104 x 80 CTAs of 8 x 8 threads, and no input; the spheres follow from their number.
#define SPHERES 12

struct Hit {
    float distance;
    float3 normal;
    float shade;
};

__device__ inline float dot3(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ inline float3 along(float3 from, float3 to, float t) {
    return make_float3(from.x + to.x * t, from.y + to.y * t, from.z + to.z * t);
}

__device__ inline float4 sphere(unsigned i) {
    const float turn = 2.3999632f * i;
    return make_float4(__cosf(turn) * (1.0f + 0.25f * i), 0.5f + 0.2f * (i % 4), 6.0f + __sinf(turn) * (1.0f + 0.25f * i),
                       0.5f + 0.05f * (i % 3));
}

__device__ Hit trace(float3 from, float3 to) {
    Hit hit = {1e30f, make_float3(0, 1, 0), 0.1f};
    if (to.y < -1e-4f) {
        hit.distance = -from.y / to.y;
        const float3 place = along(from, to, hit.distance);
        hit.shade = (int(floorf(place.x)) + int(floorf(place.z))) & 1 ? 0.9f : 0.3f;
    }
    for (unsigned i = 0; i < SPHERES; i++) {
        const float4 ball = sphere(i);
        const float3 off = make_float3(from.x - ball.x, from.y - ball.y, from.z - ball.z);
        const float b = dot3(off, to), c = dot3(off, off) - ball.w * ball.w, d = b * b - c;
        if (d <= 0) continue;
        const float t = -b - sqrtf(d);
        if (t < 1e-3f || t >= hit.distance) continue;
        const float3 place = along(from, to, t);
        const float inverse = 1.0f / ball.w;
        hit.distance = t;
        hit.normal = make_float3((place.x - ball.x) * inverse, (place.y - ball.y) * inverse, (place.z - ball.z) * inverse);
        hit.shade = 0.5f + 0.04f * i;
    }
    return hit;
}

extern "C" __global__ void raytrace(unsigned *picture, unsigned width, unsigned height) {
    const unsigned x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    float3 from = make_float3(0, 2, -2);
    float3 to = make_float3((x - 0.5f * width) / height, (0.4f * height - y) / height, 1.0f);
    const float scale = rsqrtf(dot3(to, to));
    to = make_float3(to.x * scale, to.y * scale, to.z * scale);
    const float3 light = make_float3(-0.48f, 0.8f, -0.36f);
    float colour = 0, weight = 1;
    for (unsigned bounce = 0; bounce < 2; bounce++) {
        const Hit hit = trace(from, to);
        if (hit.distance > 1e29f) {
            colour += weight * 0.1f;
            break;
        }
        from = along(from, to, hit.distance);
        const Hit shadow = trace(from, light);
        const float lit = shadow.distance > 1e29f ? fmaxf(dot3(hit.normal, light), 0.0f) : 0.0f;
        colour += weight * hit.shade * (0.2f + 0.8f * lit);
        weight *= 0.3f;
        to = along(to, hit.normal, -2 * dot3(to, hit.normal));
    }
    picture[y * width + x] = __saturatef(colour) * 255.0f;
}
