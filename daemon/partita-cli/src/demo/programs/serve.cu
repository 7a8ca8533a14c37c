// A server: `POST /infer` runs a small network on the GPU, a chain of 14 dependent kernels. The body has up to 64
// numbers between spaces, commas or line ends. The answer is JSON: the 64 words of the result in hexadecimal, the
// device time that the request took, and the GPU's timer when the result was ready, both in nanoseconds.
// Requests are served in their order, one a connection. The first line of the output is `PORT n`.
// The server ends when its standard input ends. Usage: serve
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t error = (call);                                                     \
        if (error != cudaSuccess) {                                                     \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));         \
            std::exit(1);                                                               \
        }                                                                               \
    } while (0)

const int ROWS = 32, DIM = 64, LAYERS = 3;
const int PER_BLOCK = 2;  // rows of a block, a thread for each element

struct Answer {
    float values[DIM];
    unsigned long long ready;
};

__device__ float total(float value, float (*shared)[DIM]) {
    float *row = shared[threadIdx.y];
    row[threadIdx.x] = value;
    for (int half = DIM / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) row[threadIdx.x] += row[threadIdx.x + half];
    }
    __syncthreads();
    float sum = row[0];
    __syncthreads();
    return sum;
}

__global__ void embed(float *x, const float *input) {
    int row = blockIdx.x * PER_BLOCK + threadIdx.y, column = threadIdx.x;
    x[row * DIM + column] = input[column] * ((row * 7 + column * 3) % 11 - 5) * 0.125f;
}

__global__ void product(float *out, const float *a, const float *w) {
    int row = blockIdx.x * PER_BLOCK + threadIdx.y, column = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < DIM; k++) sum += a[row * DIM + k] * w[k * DIM + column];
    out[row * DIM + column] = sum;
}

__global__ void softmax(float *x) {
    __shared__ float shared[PER_BLOCK][DIM];
    int at = (blockIdx.x * PER_BLOCK + threadIdx.y) * DIM + threadIdx.x;
    float power = expf(fminf(x[at], 30.0f));
    x[at] = power / total(power, shared);
}

__global__ void add_norm(float *x, const float *y) {
    __shared__ float shared[PER_BLOCK][DIM];
    int at = (blockIdx.x * PER_BLOCK + threadIdx.y) * DIM + threadIdx.x;
    float value = x[at] + y[at];
    float centred = value - total(value, shared) / DIM;
    x[at] = centred * rsqrtf(total(centred * centred, shared) / DIM + 1e-5f);
}

__global__ void pool(Answer *answer, const float *x) {
    float sum = 0;
    for (int row = 0; row < ROWS; row++) sum += x[row * DIM + threadIdx.x];
    answer->values[threadIdx.x] = sum / ROWS;
    if (threadIdx.x == 0) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(answer->ready));
}

struct Network {
    float *input, *x, *hidden, *out, *weights;
    Answer *answer;
    float *host_input;
    Answer *host_answer;
    cudaStream_t stream;
    cudaEvent_t began, computed, ended;

    Network() {
        const int words = 2 * LAYERS * DIM * DIM;
        std::vector<float> initial(words);
        uint32_t seed = 1;
        for (float &weight : initial) {
            seed = seed * 1664525u + 1013904223u;
            weight = ((seed >> 8) % 2001 / 1000.0f - 1.0f) * 0.25f;
        }
        CHECK(cudaMalloc(&input, DIM * sizeof(float)));
        CHECK(cudaMalloc(&x, ROWS * DIM * sizeof(float)));
        CHECK(cudaMalloc(&hidden, ROWS * DIM * sizeof(float)));
        CHECK(cudaMalloc(&out, ROWS * DIM * sizeof(float)));
        CHECK(cudaMalloc(&weights, words * sizeof(float)));
        CHECK(cudaMalloc(&answer, sizeof(Answer)));
        CHECK(cudaMallocHost(&host_input, DIM * sizeof(float)));
        CHECK(cudaMallocHost(&host_answer, sizeof(Answer)));
        CHECK(cudaMemcpy(weights, initial.data(), words * sizeof(float), cudaMemcpyHostToDevice));
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaEventCreate(&began));
        CHECK(cudaEventCreate(&computed));
        CHECK(cudaEventCreate(&ended));
    }

    std::string infer(const float *numbers) {
        const dim3 blocks(ROWS / PER_BLOCK), threads(DIM, PER_BLOCK);
        std::memcpy(host_input, numbers, DIM * sizeof(float));
        CHECK(cudaEventRecord(began, stream));
        CHECK(cudaMemcpyAsync(input, host_input, DIM * sizeof(float), cudaMemcpyHostToDevice, stream));
        embed<<<blocks, threads, 0, stream>>>(x, input);
        for (int layer = 0; layer < LAYERS; layer++) {
            const float *w = weights + 2 * layer * DIM * DIM;
            product<<<blocks, threads, 0, stream>>>(hidden, x, w);
            softmax<<<blocks, threads, 0, stream>>>(hidden);
            product<<<blocks, threads, 0, stream>>>(out, hidden, w + DIM * DIM);
            add_norm<<<blocks, threads, 0, stream>>>(x, out);
        }
        pool<<<1, DIM, 0, stream>>>(answer, x);
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(computed, stream));
        CHECK(cudaMemcpyAsync(host_answer, answer, sizeof(Answer), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaEventRecord(ended, stream));
        CHECK(cudaStreamSynchronize(stream));
        float took, copied;
        CHECK(cudaEventElapsedTime(&took, began, ended));
        CHECK(cudaEventElapsedTime(&copied, computed, ended));
        // The last kernel has read the timer; the copy of its result came after that.
        unsigned long long ready = host_answer->ready + (unsigned long long)(copied * 1e6f);
        std::string text = "{\"result\":\"";
        char word[9];
        for (float value : host_answer->values) {
            uint32_t bits;
            std::memcpy(&bits, &value, sizeof bits);
            std::snprintf(word, sizeof word, "%08x", bits);
            text += word;
        }
        return text + "\",\"took_ns\":" + std::to_string((long long)(took * 1e6f)) +
               ",\"ready_ns\":" + std::to_string(ready) + "}";
    }
};

// How long a client has, in seconds: for its whole request, for taking its answer, and for its end.
const int ASKING = 5, TAKING = 5, ENDING = 1;
const size_t LONGEST_HEAD = 8192, LONGEST_BODY = 4096;

struct Refusal {
    const char *status, *text;
};

struct Connection {
    int socket;
    std::chrono::steady_clock::time_point deadline;

    explicit Connection(int socket) : socket(socket) { within(ASKING); }
    Connection(const Connection &) = delete;
    ~Connection() { close(socket); }

    void within(int seconds) { deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds); }

    bool wait(short events) {
        for (;;) {
            auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                deadline - std::chrono::steady_clock::now());
            if (left.count() <= 0) return false;
            pollfd poll_socket = {socket, events, 0};
            int ready = poll(&poll_socket, 1, (int)left.count());
            if (ready > 0) return true;
            if (ready < 0 && errno != EINTR) return false;
        }
    }

    // Appends what has come. False at the end and where too much time has passed.
    bool more(std::string &text) {
        char bytes[1024];
        for (;;) {
            if (!wait(POLLIN)) return false;
            ssize_t count = recv(socket, bytes, sizeof bytes, 0);
            if (count > 0) text.append(bytes, count);
            if (count >= 0 || (errno != EINTR && errno != EAGAIN)) return count > 0;
        }
    }

    void answer(const char *status, const std::string &type, const std::string &body) {
        std::string text = std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type +
                           "\r\nContent-Length: " + std::to_string(body.size()) +
                           "\r\nConnection: close\r\n\r\n" + body;
        within(TAKING);
        for (size_t at = 0; at < text.size();) {
            if (!wait(POLLOUT)) return;
            ssize_t count = send(socket, text.data() + at, text.size() - at, MSG_NOSIGNAL);
            if (count < 0 && errno != EINTR && errno != EAGAIN) return;
            if (count > 0) at += count;
        }
        shutdown(socket, SHUT_WR);
        within(ENDING);
        // What the other side still sends must not reset the connection before it has read the answer.
        std::string rest;
        while (rest.size() < LONGEST_BODY && more(rest)) {}
    }
};

// The value of a header, without blanks around it; empty where there is none.
std::string header(const std::string &head, const char *name) {
    size_t length = std::strlen(name);
    for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at)) {
        at += 2;
        if (strncasecmp(head.c_str() + at, name, length) == 0 && head[at + length] == ':') {
            size_t end = head.find("\r\n", at), begin = head.find_first_not_of(" \t", at + length + 1);
            if (begin == std::string::npos || begin >= end) return "";
            return head.substr(begin, head.find_last_not_of(" \t", end - 1) + 1 - begin);
        }
    }
    return "";
}

// The numbers of a request's body; throws a refusal.
std::vector<float> read_request(Connection &connection) {
    std::string text;
    size_t head_end;
    while ((head_end = text.find("\r\n\r\n")) == std::string::npos) {
        if (text.size() > LONGEST_HEAD) throw Refusal{"431 Request Header Fields Too Large", "too long a head"};
        if (!connection.more(text)) throw Refusal{"408 Request Timeout", "no whole request came"};
    }
    std::string head = text.substr(0, head_end + 2), body = text.substr(head_end + 4);
    size_t method_end = head.find(' ');
    size_t path_end = method_end == std::string::npos ? method_end : head.find(' ', method_end + 1);
    if (path_end == std::string::npos || head.compare(path_end + 1, 7, "HTTP/1.") != 0)
        throw Refusal{"400 Bad Request", "this is no HTTP/1.1"};
    if (head.substr(method_end + 1, path_end - method_end - 1) != "/infer")
        throw Refusal{"404 Not Found", "there is only /infer"};
    if (head.compare(0, method_end, "POST") != 0)
        throw Refusal{"405 Method Not Allowed", "use POST"};
    std::string length = header(head, "Content-Length");
    if (length.empty()) throw Refusal{"411 Length Required", "a Content-Length is needed"};
    if (length.size() > 9 || length.find_first_not_of("0123456789") != std::string::npos)
        throw Refusal{"400 Bad Request", "a wrong Content-Length"};
    size_t wanted = std::strtoul(length.c_str(), nullptr, 10);
    if (wanted > LONGEST_BODY) throw Refusal{"413 Content Too Large", "at most 4096 bytes"};
    while (body.size() < wanted)
        if (!connection.more(body)) throw Refusal{"408 Request Timeout", "no whole body came"};
    body.resize(wanted);
    for (char &byte : body)
        if (byte == ',' || byte == '\n' || byte == '\r' || byte == '\t') byte = ' ';
    std::vector<float> numbers;
    for (const char *at = body.c_str();;) {
        while (*at == ' ') at++;
        if (at == body.c_str() + body.size()) break;
        char *end;
        float number = std::strtof(at, &end);
        if (end == at || !std::isfinite(number) || numbers.size() == DIM)
            throw Refusal{"400 Bad Request", "the body is at most 64 finite numbers"};
        numbers.push_back(number);
        at = end;
    }
    if (numbers.empty()) throw Refusal{"400 Bad Request", "the body has no number"};
    numbers.resize(DIM);
    return numbers;
}

int main() {
    Network network;
    // What is done once, such as loading kernels, is done before the first request.
    network.infer(std::vector<float>(DIM).data());
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, (sockaddr *)&address, size) != 0 || listen(listener, SOMAXCONN) != 0 ||
        getsockname(listener, (sockaddr *)&address, &size) != 0) {
        std::perror("cannot listen on 127.0.0.1");
        return 1;
    }
    std::printf("PORT %d\n", ntohs(address.sin_port));
    std::fflush(stdout);
    for (;;) {
        pollfd sources[2] = {{listener, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
        if (poll(sources, 2, -1) < 0 && errno != EINTR) return 1;
        char byte;
        if (sources[1].revents != 0 && read(STDIN_FILENO, &byte, 1) <= 0) return 0;
        if (sources[0].revents == 0) continue;
        int accepted = accept(listener, nullptr, nullptr);
        if (accepted < 0) continue;
        Connection connection(accepted);
        try {
            std::vector<float> numbers = read_request(connection);
            connection.answer("200 OK", "application/json", network.infer(numbers.data()));
        } catch (const Refusal &refusal) {
            connection.answer(refusal.status, "text/plain", std::string(refusal.text) + "\n");
        }
    }
}
