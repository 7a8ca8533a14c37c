// Textures of three dimensions, of layers, cubes and mipmap levels, and surfaces of one dimension and of layers.
#include "check.h"

const int WIDTH = 16, HEIGHT = 8, DEPTH = 4;

// What a texel holds: small whole numbers, so that interpolation between them is exact.
float value(int x, int y, int z) { return static_cast<float>((x * 7 + y * 31 + z * 57) % 101); }

__global__ void sample3D(cudaTextureObject_t texture, const float3 *at, int n, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex3D<float>(texture, at[i].x, at[i].y, at[i].z);
}

__global__ void sampleLayers(cudaTextureObject_t planes, cudaTextureObject_t lines, const float3 *at, int n, float2 *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int layer = static_cast<int>(at[i].z);
    out[i] = make_float2(tex2DLayered<float>(planes, at[i].x, at[i].y, layer), tex1DLayered<float>(lines, at[i].x, layer));
}

__global__ void sampleCube(cudaTextureObject_t texture, float *out) {
    const float3 directions[6] = {{1, 0, 0}, {-1, 0, 0}, {0, 1, 0}, {0, -1, 0}, {0, 0, 1}, {0, 0, -1}};
    float3 d = directions[threadIdx.x];
    out[threadIdx.x] = texCubemap<float>(texture, d.x, d.y, d.z);
}

__global__ void sampleLevels(cudaTextureObject_t texture, float *out) {
    out[threadIdx.x] = tex2DLod<float>(texture, 0.5f, 0.5f, threadIdx.x * 0.5f);
}

__global__ void gather(cudaTextureObject_t texture, float4 *out) {
    out[threadIdx.x] = tex2Dgather<float4>(texture, threadIdx.x + 1.0f, 3.0f, 0);
}

__global__ void paint(cudaSurfaceObject_t line, cudaSurfaceObject_t layers) {
    int x = threadIdx.x;
    surf1Dwrite(static_cast<short>(3 * x), line, x * 2);
    for (int layer = 0; layer < DEPTH; layer++) surf2DLayeredwrite(make_int2(x, layer), layers, x * 8, 1, layer);
}

__global__ void readBack(cudaSurfaceObject_t line, cudaSurfaceObject_t layers, int *out) {
    int x = threadIdx.x, sum = surf1Dread<short>(line, x * 2);
    for (int layer = 0; layer < DEPTH; layer++) {
        int2 value = surf2DLayeredread<int2>(layers, x * 8, 1, layer);
        sum += 100 * value.x + 1000 * value.y;
    }
    out[x] = sum;
}

cudaArray_t makeArray(cudaExtent extent, unsigned int flags, int width, int height, int depth) {
    cudaChannelFormatDesc channel = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    CHECK(cudaMalloc3DArray(&array, &channel, extent, flags));
    std::vector<float> texels;
    for (int z = 0; z < depth; z++)
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) texels.push_back(value(x, y, z));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(texels.data(), width * sizeof(float), width, height);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
    return array;
}

cudaTextureObject_t makeTexture(const cudaResourceDesc &resource, cudaTextureFilterMode filter, bool normalised) {
    cudaTextureDesc description = {};
    for (cudaTextureAddressMode &mode : description.addressMode) mode = cudaAddressModeClamp;
    description.filterMode = filter;
    description.mipmapFilterMode = filter;
    description.maxMipmapLevelClamp = 10;
    description.normalizedCoords = normalised;
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    return texture;
}

cudaResourceDesc resourceOf(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

int inside(int i, int size) { return i < 0 ? 0 : i >= size ? size - 1 : i; }

int main() {
    Random random;
    const int n = 600;
    std::vector<float3> at(n);
    for (float3 &point : at) {
        auto coordinate = [&](int size) {
            return (static_cast<int>(random.below(2 * size * 16)) - size * 8) / 16.0f;
        };
        point = make_float3(coordinate(WIDTH), coordinate(HEIGHT), coordinate(DEPTH));
    }
    float3 *points = upload(at);

    cudaArray_t volume = makeArray(make_cudaExtent(WIDTH, HEIGHT, DEPTH), 0, WIDTH, HEIGHT, DEPTH);
    float *out = blank<float>(n);
    sample3D<<<(n + 63) / 64, 64>>>(makeTexture(resourceOf(volume), cudaFilterModeLinear, false), points, n, out);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(out, n);
    for (int i = 0; i < n; i++) {
        double sum = 0;
        int first[3];
        double share[3];
        const float coordinates[3] = {at[i].x, at[i].y, at[i].z};
        for (int axis = 0; axis < 3; axis++) {
            double shifted = coordinates[axis] - 0.5;
            first[axis] = static_cast<int>(std::floor(shifted));
            share[axis] = shifted - first[axis];
        }
        for (int corner = 0; corner < 8; corner++) {
            double weight = 1;
            int index[3];
            for (int axis = 0; axis < 3; axis++) {
                int upper = corner >> axis & 1;
                index[axis] = first[axis] + upper;
                weight *= upper ? share[axis] : 1 - share[axis];
            }
            sum += weight * value(inside(index[0], WIDTH), inside(index[1], HEIGHT), inside(index[2], DEPTH));
        }
        expect(std::fabs(found[i] - sum) < 0.5, "3-D (%g, %g, %g): %g, expected %g", at[i].x, at[i].y, at[i].z, found[i], sum);
    }

    cudaArray_t planes =
        makeArray(make_cudaExtent(WIDTH, HEIGHT, DEPTH), cudaArrayLayered | cudaArrayTextureGather, WIDTH, HEIGHT, DEPTH);
    cudaArray_t lines = makeArray(make_cudaExtent(WIDTH, 0, DEPTH), cudaArrayLayered, WIDTH, 1, DEPTH);
    float2 *pairs = blank<float2>(n);
    sampleLayers<<<(n + 63) / 64, 64>>>(makeTexture(resourceOf(planes), cudaFilterModePoint, false),
                                        makeTexture(resourceOf(lines), cudaFilterModePoint, false), points, n, pairs);
    CHECK(cudaGetLastError());
    std::vector<float2> layered = download(pairs, n);
    for (int i = 0; i < n; i++) {
        int x = inside(static_cast<int>(std::floor(at[i].x)), WIDTH), y = inside(static_cast<int>(std::floor(at[i].y)), HEIGHT);
        int layer = static_cast<int>(at[i].z);
        if (layer < 0) continue;  // what a layer below the first gives is not defined
        layer = inside(layer, DEPTH);
        expect(layered[i].x == value(x, y, layer), "plane %d (%d, %d): %g", layer, x, y, layered[i].x);
        expect(layered[i].y == value(x, 0, layer), "line %d (%d): %g", layer, x, layered[i].y);
    }

    cudaArray_t cube = makeArray(make_cudaExtent(8, 8, 6), cudaArrayCubemap, 8, 8, 6);
    sampleCube<<<1, 6>>>(makeTexture(resourceOf(cube), cudaFilterModePoint, true), out);
    CHECK(cudaGetLastError());
    found = download(out, 6);
    for (int face = 0; face < 6; face++)
        expect(found[face] == value(4, 4, face), "face %d: %g, expected %g", face, found[face], value(4, 4, face));

    cudaChannelFormatDesc channel = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t levels;
    CHECK(cudaMallocMipmappedArray(&levels, &channel, make_cudaExtent(8, 8, 0), 4));
    for (int level = 0; level < 4; level++) {
        cudaArray_t array;
        CHECK(cudaGetMipmappedArrayLevel(&array, levels, level));
        int size = 8 >> level;
        std::vector<float> texels(size * size, 10.0f * level);
        CHECK(cudaMemcpy2DToArray(array, 0, 0, texels.data(), size * 4, size * 4, size, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc mipmapped = {};
    mipmapped.resType = cudaResourceTypeMipmappedArray;
    mipmapped.res.mipmap.mipmap = levels;
    sampleLevels<<<1, 8>>>(makeTexture(mipmapped, cudaFilterModeLinear, true), out);
    CHECK(cudaGetLastError());
    found = download(out, 8);
    for (int i = 0; i < 8; i++) {
        float expected = std::fmin(5.0f * i, 30.0f);
        expect(found[i] == expected, "level %g: %g, expected %g", i * 0.5, found[i], expected);
    }

    cudaArray_t plane = makeArray(make_cudaExtent(WIDTH, HEIGHT, 0), cudaArrayTextureGather, WIDTH, HEIGHT, 1);
    float4 *quads = blank<float4>(WIDTH - 1);
    gather<<<1, WIDTH - 1>>>(makeTexture(resourceOf(plane), cudaFilterModePoint, false), quads);
    CHECK(cudaGetLastError());
    std::vector<float4> four = download(quads, WIDTH - 1);
    for (int x = 0; x < WIDTH - 1; x++)
        expect(four[x].x == value(x, 3, 0) && four[x].y == value(x + 1, 3, 0) && four[x].z == value(x + 1, 2, 0) &&
                   four[x].w == value(x, 2, 0), "gather %d: %g %g %g %g", x, four[x].x, four[x].y, four[x].z, four[x].w);

    cudaChannelFormatDesc narrow = cudaCreateChannelDesc<short>(), pair = cudaCreateChannelDesc<int2>();
    cudaArray_t line, layers;
    CHECK(cudaMallocArray(&line, &narrow, WIDTH, 0, cudaArraySurfaceLoadStore));
    CHECK(cudaMalloc3DArray(&layers, &pair, make_cudaExtent(WIDTH, 2, DEPTH), cudaArrayLayered | cudaArraySurfaceLoadStore));
    cudaSurfaceObject_t lineSurface, layerSurface;
    cudaResourceDesc lineResource = resourceOf(line), layerResource = resourceOf(layers);
    CHECK(cudaCreateSurfaceObject(&lineSurface, &lineResource));
    CHECK(cudaCreateSurfaceObject(&layerSurface, &layerResource));
    int *sums = blank<int>(WIDTH);
    paint<<<1, WIDTH>>>(lineSurface, layerSurface);
    readBack<<<1, WIDTH>>>(lineSurface, layerSurface, sums);
    CHECK(cudaGetLastError());
    std::vector<int> sum = download(sums, WIDTH);
    for (int x = 0; x < WIDTH; x++) expect(sum[x] == 3 * x + 400 * x + 6000, "surfaces %d: %d", x, sum[x]);

    std::printf("texture_kinds samples=%d\n", n);
    return verdict();
}
