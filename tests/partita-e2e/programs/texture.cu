// Texture sampling: linear memory, 1-D and 2-D arrays and pitched memory, point and linear filters, four address modes,
// normalised coordinates and normalised bytes.
#include "check.h"

const int WIDTH = 24, HEIGHT = 16;

__global__ void fetch(cudaTextureObject_t texture, int n, float4 *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1Dfetch<float4>(texture, i);
}

__global__ void sample1D(cudaTextureObject_t texture, const float *at, int n, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1D<float>(texture, at[i]);
}

__global__ void sample2D(cudaTextureObject_t texture, const float2 *at, int n, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex2D<float>(texture, at[i].x, at[i].y);
}

cudaTextureObject_t makeTexture(const cudaResourceDesc &resource, cudaTextureAddressMode address,
                                cudaTextureFilterMode filter, cudaTextureReadMode read, bool normalised) {
    cudaTextureDesc description = {};
    description.addressMode[0] = description.addressMode[1] = address;
    description.filterMode = filter;
    description.readMode = read;
    description.normalizedCoords = normalised;
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    return texture;
}

// A texel by its index under an address mode, as the CUDA Programming Guide's appendix on texture fetching says.
int resolve(int i, int size, cudaTextureAddressMode mode) {
    if (mode == cudaAddressModeClamp) return i < 0 ? 0 : i >= size ? size - 1 : i;
    if (mode == cudaAddressModeWrap) return ((i % size) + size) % size;
    if (mode == cudaAddressModeMirror) {
        int k = ((i % (2 * size)) + 2 * size) % (2 * size);
        return k < size ? k : 2 * size - 1 - k;
    }
    return i < 0 || i >= size ? -1 : i;  // border: zero
}

double texel(const std::vector<float> &data, int width, int height, int x, int y, cudaTextureAddressMode mode) {
    x = resolve(x, width, mode);
    y = resolve(y, height, mode);
    return x < 0 || y < 0 ? 0.0 : data[y * width + x];
}

double sample(const std::vector<float> &data, int width, int height, double x, double y, cudaTextureAddressMode mode,
              bool linear) {
    if (!linear)
        return texel(data, width, height, static_cast<int>(std::floor(x)), static_cast<int>(std::floor(y)), mode);
    double xb = x - 0.5, yb = height == 1 ? 0.0 : y - 0.5;
    int i = static_cast<int>(std::floor(xb)), j = static_cast<int>(std::floor(yb));
    double a = xb - i, b = yb - j;
    return (1 - a) * (1 - b) * texel(data, width, height, i, j, mode) +
           a * (1 - b) * texel(data, width, height, i + 1, j, mode) +
           (1 - a) * b * texel(data, width, height, i, j + 1, mode) + a * b * texel(data, width, height, i + 1, j + 1, mode);
}

int main() {
    Random random;
    std::vector<float> data(WIDTH * HEIGHT);
    for (float &value : data) value = random.unit();

    // Linear memory by integer index.
    cudaResourceDesc linear = {};
    linear.resType = cudaResourceTypeLinear;
    linear.res.linear.devPtr = upload(data);
    linear.res.linear.desc = cudaCreateChannelDesc<float4>();
    linear.res.linear.sizeInBytes = data.size() * sizeof(float);
    int quads = WIDTH * HEIGHT / 4;
    float4 *fetched = blank<float4>(quads);
    fetch<<<3, 32>>>(makeTexture(linear, cudaAddressModeClamp, cudaFilterModePoint, cudaReadModeElementType, false), quads,
                     fetched);
    CHECK(cudaGetLastError());
    std::vector<float4> quadsFound = download(fetched, quads);
    for (int i = 0; i < quads; i++) {
        float4 q = quadsFound[i];
        expect(q.x == data[4 * i] && q.y == data[4 * i + 1] && q.z == data[4 * i + 2] && q.w == data[4 * i + 3],
               "fetch %d", i);
    }

    // Arrays, at points in and out of range that are multiples of 1/256, which the 8-bit filter weights hold exactly.
    cudaChannelFormatDesc channel = cudaCreateChannelDesc<float>();
    cudaArray_t line, plane;
    CHECK(cudaMallocArray(&line, &channel, WIDTH));
    CHECK(cudaMallocArray(&plane, &channel, WIDTH, HEIGHT));
    CHECK(cudaMemcpy2DToArray(line, 0, 0, data.data(), WIDTH * 4, WIDTH * 4, 1, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2DToArray(plane, 0, 0, data.data(), WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyHostToDevice));
    const int n = 1500;
    std::vector<float2> points(n);
    std::vector<float> xs(n);
    for (int i = 0; i < n; i++) {
        xs[i] = (static_cast<int>(random.below(3 * WIDTH * 256)) - WIDTH * 256) / 256.0f;
        points[i] = make_float2(xs[i], (static_cast<int>(random.below(3 * HEIGHT * 256)) - HEIGHT * 256) / 256.0f);
    }
    float *out = blank<float>(n);
    struct Mode {
        const char *name;
        cudaTextureAddressMode address;
        bool normalised;
    };
    for (Mode mode : {Mode{"clamp", cudaAddressModeClamp, false}, Mode{"border", cudaAddressModeBorder, false},
                      Mode{"wrap", cudaAddressModeWrap, true}, Mode{"mirror", cudaAddressModeMirror, true}}) {
        for (bool smooth : {false, true}) {
            cudaTextureFilterMode filter = smooth ? cudaFilterModeLinear : cudaFilterModePoint;
            // Values are below one.  The filter's weights have 8 bits: half a step for what the hardware rounds, two
            // steps where dividing by a width of 24 may have moved a weight in each direction.
            double tolerance = smooth ? (mode.normalised ? 2.0 / 256 : 0.5 / 256) : 0;
            std::vector<float2> at = points;
            for (float2 &point : at)
                if (mode.normalised) point = make_float2(point.x / WIDTH, point.y / HEIGHT);
            cudaResourceDesc resource = {};
            resource.resType = cudaResourceTypeArray;
            resource.res.array.array = plane;
            sample2D<<<(n + 63) / 64, 64>>>(
                makeTexture(resource, mode.address, filter, cudaReadModeElementType, mode.normalised), upload(at), n, out);
            CHECK(cudaGetLastError());
            std::vector<float> found = download(out, n);
            for (int i = 0; i < n; i++) {
                // A point that a rounded division may have moved over a texel's edge decides nothing.
                bool edge = mode.normalised && (points[i].x == std::floor(points[i].x) || points[i].y == std::floor(points[i].y));
                double expected = sample(data, WIDTH, HEIGHT, points[i].x, points[i].y, mode.address, smooth);
                expect((edge && !smooth) || std::fabs(found[i] - expected) <= tolerance, "2-D %s %s (%g, %g): %g, expected %g",
                       mode.name, smooth ? "linear" : "point", points[i].x, points[i].y, found[i], expected);
            }
            if (mode.normalised) continue;
            resource.res.array.array = line;
            sample1D<<<(n + 63) / 64, 64>>>(makeTexture(resource, mode.address, filter, cudaReadModeElementType, false),
                                           upload(xs), n, out);
            CHECK(cudaGetLastError());
            found = download(out, n);
            for (int i = 0; i < n; i++) {
                double expected = sample(data, WIDTH, 1, xs[i], 0, mode.address, smooth);
                expect(std::fabs(found[i] - expected) <= tolerance, "1-D %s %s %g: %g, expected %g", mode.name,
                       smooth ? "linear" : "point", xs[i], found[i], expected);
            }
        }
    }

    // Bytes read as numbers from 0 to 1, from pitched memory.
    std::vector<unsigned char> bytes(WIDTH * HEIGHT);
    for (unsigned char &value : bytes) value = static_cast<unsigned char>(random.below(256));
    unsigned char *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, WIDTH, HEIGHT));
    CHECK(cudaMemcpy2D(pitched, pitch, bytes.data(), WIDTH, WIDTH, HEIGHT, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = pitched;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<unsigned char>();
    resource.res.pitch2D.width = WIDTH;
    resource.res.pitch2D.height = HEIGHT;
    resource.res.pitch2D.pitchInBytes = pitch;
    sample2D<<<(n + 63) / 64, 64>>>(
        makeTexture(resource, cudaAddressModeClamp, cudaFilterModePoint, cudaReadModeNormalizedFloat, false), upload(points),
        n, out);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(out, n);
    for (int i = 0; i < n; i++) {
        int x = resolve(static_cast<int>(std::floor(points[i].x)), WIDTH, cudaAddressModeClamp);
        int y = resolve(static_cast<int>(std::floor(points[i].y)), HEIGHT, cudaAddressModeClamp);
        double expected = bytes[y * WIDTH + x] / 255.0;
        expect(std::fabs(found[i] - expected) < 1e-6, "byte (%d, %d): %g, expected %g", x, y, found[i], expected);
    }
    std::printf("texture %dx%d samples=%d\n", WIDTH, HEIGHT, n);
    return verdict();
}
