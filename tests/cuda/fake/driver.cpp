// A libcuda.so.1 without a GPU: the part of the driver API listed in cuda/device/api.h, on the kernels of
// tests/cuda/fake/kernels.cpp. Work given to a stream is done only when something waits for it; a seed decides
// in which order streams run.
//
// The environment, read by cuInit, decides what devices there are and which faults occur:
// CUDA_VISIBLE_DEVICES as NVIDIA's driver has it: "" or -1: none; indices or UUIDs, up to the first unknown one
//   FAKE_CUDA_DEVICES=1            how many devices; 0: none
//   FAKE_CUDA_DRIVER=13000         what cuDriverGetVersion says
//   FAKE_CUDA_INIT=0               what cuInit returns, if not 0
//   FAKE_CUDA_MULTIPROCESSORS=4
//   FAKE_CUDA_CAPABILITY=90        compute capability, 10 times
//   FAKE_CUDA_SHARED=232448        bytes of shared memory that a block may ask for
//   FAKE_CUDA_COOPERATIVE=1        0: no cooperative launches
//   FAKE_CUDA_REGISTER=1           0: cuMemHostRegister refuses
//   FAKE_CUDA_MEMORY=1073741824    bytes of memory on each device
//   FAKE_CUDA_FAIL_ALLOC=0         this allocation (1, 2, ...) on a device fails
//   FAKE_CUDA_LOSE_AT=0            the device is lost in this launch of a kernel (1, 2, ...; those of graphs count too)
// FAKE_CUDA_HANG_AT=0            this launch never returns: a wait for it never ends
// FAKE_CUDA_SLOW_MS=0            delay of every launch
// FAKE_CUDA_SEED=0               order in which threads, blocks and streams run; 0: by number
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "cuda/device/api.h"
#include "tests/cuda/fake/grid.h"
#include "tests/cuda/fake/kernels.h"

struct CUctx_st {
    int device;
};
struct CUmod_st {
    int nothing;
};
struct CUfunc_st {
    fake_kernel *kernel;
};
struct CUevent_st {
    uint64_t asked = 0, done = 0; // records
};

namespace
{

struct operation {
    std::function<cu_result()> run;
    cu_event record = nullptr;
    cu_event wait = nullptr;
    uint64_t wanted = 0;
};

struct launch {
    fake_kernel *kernel;
    unsigned blocks, threads, shared_bytes;
    bool together;
    std::vector<std::vector<char>> arguments;
};

struct settings {
    int devices, driver, init, multiprocessors, capability, shared, cooperative, may_register, slow_ms;
    uint64_t memory, fail_alloc, lose_at, hang_at, seed;
};

settings set;
std::vector<int> visible;
std::vector<cu_stream> streams;
std::map<cu_pointer, size_t> allocations;
std::map<const void *, size_t> registered;
uint64_t used, allocated, launched;
cu_result lost; // result of every call from now on
cu_context current;
int retained;

uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

std::string uuid_text(int device)
{
    char text[64];
    snprintf(text, sizeof text, "GPU-fa4e0000-0000-0000-0000-%012x", device);
    return text;
}

void read_visible()
{
    visible.clear();
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (int i = 0; i < set.devices; i++) {
            visible.push_back(i);
        }
        return;
    }
    for (std::string rest = text; !rest.empty();) {
        size_t comma = rest.find(',');
        std::string word = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        int found = -1;
        for (int i = 0; i < set.devices; i++) {
            bool named = word.compare(0, 4, "GPU-") == 0 && uuid_text(i).compare(0, word.size(), word) == 0;
            found = word == std::to_string(i) || named ? i : found;
        }
        if (found < 0) {
            break;
        }
        visible.push_back(found);
    }
}

} // namespace

struct CUstream_st {
    std::deque<operation> queue;
    std::vector<launch> *capture = nullptr;
};
struct CUgraph_st {
    std::vector<launch> launches;
};
struct CUgraphExec_st {
    std::vector<launch> launches;
};

namespace
{

cu_result run_launch(const launch &what)
{
    launched++;
    if (launched == set.hang_at) {
        for (;;) {
            pause();
        }
    }
    if (launched == set.lose_at) {
        return lost = CU_LAUNCH_FAILED;
    }
    if (set.slow_ms > 0) {
        usleep(static_cast<useconds_t>(set.slow_ms) * 1000);
    }
    std::vector<void *> pointers;
    for (const std::vector<char> &argument : what.arguments) {
        pointers.push_back(const_cast<char *>(argument.data()));
    }
    fake_run_grid(what.kernel->name, what.blocks, what.threads, what.shared_bytes, what.together,
                  [&] { what.kernel->call(pointers.data()); });
    return CU_SUCCESS;
}

cu_result put(cu_stream stream, std::function<cu_result()> run)
{
    if (lost) {
        return lost;
    }
    if (stream->capture) {
        return CU_NOT_SUPPORTED; // copies are not captured here, and our code does not try
    }
    operation next;
    next.run = std::move(run);
    stream->queue.push_back(std::move(next));
    return CU_SUCCESS;
}

bool can_go_on(const cu_stream stream)
{
    return !stream->queue.empty() &&
           (!stream->queue.front().wait || stream->queue.front().wait->done >= stream->queue.front().wanted);
}

// Runs any streams until `done`.
cu_result work(const std::function<bool()> &done)
{
    while (!lost && !done()) {
        std::vector<cu_stream> able;
        for (cu_stream stream : streams) {
            if (can_go_on(stream)) {
                able.push_back(stream);
            }
        }
        if (able.empty()) {
            fprintf(stderr, "fake CUDA: streams wait for one another for ever\n");
            abort();
        }
        cu_stream stream = able[set.seed ? fake_random() % able.size() : 0];
        operation next = std::move(stream->queue.front());
        stream->queue.pop_front();
        if (next.run) {
            cu_result result = next.run();
            if (result) {
                return lost = result;
            }
        }
        if (next.record) {
            next.record->done++;
        }
    }
    return lost;
}

// The whole range must lie in one allocation.
bool in_memory(cu_pointer pointer, size_t bytes)
{
    auto next = allocations.upper_bound(pointer);
    if (next == allocations.begin()) {
        return false;
    }
    --next;
    return pointer - next->first <= next->second && bytes <= next->second - (pointer - next->first);
}

void *host(cu_pointer pointer)
{
    return reinterpret_cast<void *>(static_cast<uintptr_t>(pointer));
}

// Memory that is not page-locked is read before the call returns; other memory when the copy's turn comes.
bool is_locked(const void *pointer, size_t bytes)
{
    auto next = registered.upper_bound(pointer);
    if (next == registered.begin()) {
        return false;
    }
    --next;
    size_t offset = static_cast<size_t>(static_cast<const char *>(pointer) - static_cast<const char *>(next->first));
    return offset <= next->second && bytes <= next->second - offset;
}

cu_result prepare(launch *what, cu_function function, const unsigned (&grid)[3], const unsigned (&block)[3],
                  unsigned shared_bytes, bool together, void **arguments)
{
    fake_kernel *kernel = function->kernel;
    unsigned threads = block[0];
    if (grid[0] == 0 || grid[1] != 1 || grid[2] != 1 || block[1] != 1 || block[2] != 1 || threads == 0 ||
        threads > 1024 || threads % 32 != 0 || shared_bytes > kernel->shared_limit) {
        return CU_INVALID_VALUE;
    }
    if (together && (!set.cooperative || grid[0] > static_cast<unsigned>(set.multiprocessors))) {
        return CU_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    *what = {kernel, grid[0], threads, shared_bytes, together, {}};
    for (size_t i = 0; i < kernel->sizes.size(); i++) {
        const char *bytes = static_cast<const char *>(arguments[i]);
        what->arguments.emplace_back(bytes, bytes + kernel->sizes[i]);
    }
    return CU_SUCCESS;
}

cu_result give(cu_stream stream, const launch &what)
{
    if (stream->capture) {
        stream->capture->push_back(what);
        return lost;
    }
    return put(stream, [what] { return run_launch(what); });
}

} // namespace

#define API extern "C" __attribute__((visibility("default"))) cu_result

API cuInit(unsigned)
{
    set = {static_cast<int>(number("FAKE_CUDA_DEVICES", 1) % 64),
           static_cast<int>(number("FAKE_CUDA_DRIVER", 13000)),
           static_cast<int>(number("FAKE_CUDA_INIT", 0)),
           static_cast<int>(number("FAKE_CUDA_MULTIPROCESSORS", 4)),
           static_cast<int>(number("FAKE_CUDA_CAPABILITY", 90)),
           static_cast<int>(number("FAKE_CUDA_SHARED", 232448)),
           static_cast<int>(number("FAKE_CUDA_COOPERATIVE", 1)),
           static_cast<int>(number("FAKE_CUDA_REGISTER", 1)),
           static_cast<int>(number("FAKE_CUDA_SLOW_MS", 0)),
           number("FAKE_CUDA_MEMORY", 1u << 30),
           number("FAKE_CUDA_FAIL_ALLOC", 0),
           number("FAKE_CUDA_LOSE_AT", 0),
           number("FAKE_CUDA_HANG_AT", 0),
           number("FAKE_CUDA_SEED", 0)};
    fake_set_seed(set.seed);
    allocated = launched = 0;
    lost = CU_SUCCESS;
    read_visible();
    return set.init ? set.init : visible.empty() ? CU_NO_DEVICE : CU_SUCCESS;
}

API cuDriverGetVersion(int *version)
{
    // May be called before cuInit.
    *version = static_cast<int>(number("FAKE_CUDA_DRIVER", 13000));
    return CU_SUCCESS;
}

API cuGetErrorName(cu_result result, const char **text)
{
    static const std::map<int, const char *> names = {
        {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {CU_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"},
        {CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CU_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    };
    auto found = names.find(result);
    *text = found == names.end() ? nullptr : found->second;
    return *text ? CU_SUCCESS : CU_INVALID_VALUE;
}

API cuGetErrorString(cu_result result, const char **text)
{
    static const std::map<int, const char *> texts = {
        {CU_INVALID_VALUE, "invalid argument"},
        {CU_OUT_OF_MEMORY, "out of memory"},
        {CU_NO_DEVICE, "no CUDA-capable device is detected"},
        {CU_LAUNCH_FAILED, "unspecified launch failure"},
    };
    auto found = texts.find(result);
    *text = found == texts.end() ? nullptr : found->second;
    return *text ? CU_SUCCESS : CU_INVALID_VALUE;
}

// ---- devices ----

API cuDeviceGetCount(int *count)
{
    *count = static_cast<int>(visible.size());
    return CU_SUCCESS;
}

API cuDeviceGet(cu_device *device, int ordinal)
{
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= visible.size()) {
        return CU_INVALID_DEVICE;
    }
    *device = visible[static_cast<size_t>(ordinal)];
    return CU_SUCCESS;
}

API cuDeviceGetName(char *name, int size, cu_device device)
{
    snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
    return CU_SUCCESS;
}

API cuDeviceGetUuid_v2(cu_uuid *uuid, cu_device device)
{
    *uuid = {{'\xfa', '\x4e', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<char>(device)}};
    return CU_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, cu_device)
{
    *bytes = set.memory;
    return CU_SUCCESS;
}

API cuDeviceGetAttribute(int *value, int attribute, cu_device)
{
    static const std::map<int, std::function<int()>> values = {
        {CU_ATTRIBUTE_MULTIPROCESSORS, [] { return set.multiprocessors; }},
        {CU_ATTRIBUTE_MAJOR, [] { return set.capability / 10; }},
        {CU_ATTRIBUTE_MINOR, [] { return set.capability % 10; }},
        {CU_ATTRIBUTE_COOPERATIVE_LAUNCH, [] { return set.cooperative; }},
        {CU_ATTRIBUTE_SHARED_BYTES, [] { return set.shared; }},
        {CU_ATTRIBUTE_HOST_REGISTER, [] { return set.may_register; }},
    };
    auto found = values.find(attribute);
    if (found == values.end()) {
        return CU_INVALID_VALUE;
    }
    *value = found->second();
    return CU_SUCCESS;
}

API cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    if (lost) {
        return lost;
    }
    static CUctx_st contexts[64];
    retained++;
    contexts[device] = {device};
    *context = &contexts[device];
    return CU_SUCCESS;
}

// As in the real driver, the context takes along everything made in it.
API cuDevicePrimaryCtxRelease_v2(cu_device)
{
    if (retained == 0) {
        return CU_INVALID_VALUE;
    }
    if (--retained == 0) {
        for (auto &allocation : allocations) {
            free(host(allocation.first));
        }
        allocations.clear();
        used = 0;
    }
    return CU_SUCCESS;
}

API cuCtxSetCurrent(cu_context context)
{
    current = context;
    return lost;
}

// ---- memory ----

API cuMemGetInfo_v2(size_t *left, size_t *total)
{
    *left = set.memory - used;
    *total = set.memory;
    return lost;
}

API cuMemAlloc_v2(cu_pointer *pointer, size_t bytes)
{
    if (lost) {
        return lost;
    }
    allocated++;
    if (bytes == 0) {
        return CU_INVALID_VALUE;
    }
    if (allocated == set.fail_alloc || bytes > set.memory - used) {
        return CU_OUT_OF_MEMORY;
    }
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory) {
        return CU_OUT_OF_MEMORY;
    }
    memset(memory, 0xff, bytes); // NaN as floats
    *pointer = reinterpret_cast<uintptr_t>(memory);
    allocations[*pointer] = bytes;
    used += bytes;
    return CU_SUCCESS;
}

API cuMemFree_v2(cu_pointer pointer)
{
    auto found = allocations.find(pointer);
    if (found == allocations.end()) {
        return CU_INVALID_VALUE;
    }
    used -= found->second;
    free(host(pointer));
    allocations.erase(found);
    return lost;
}

API cuMemHostAlloc(void **pointer, size_t bytes, unsigned)
{
    if (lost) {
        return lost;
    }
    *pointer = malloc(bytes);
    if (!*pointer) {
        return CU_OUT_OF_MEMORY;
    }
    registered[*pointer] = bytes;
    return CU_SUCCESS;
}

API cuMemFreeHost(void *pointer)
{
    if (registered.erase(pointer) == 0) {
        return CU_INVALID_VALUE;
    }
    free(pointer);
    return lost;
}

API cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned)
{
    if (!set.may_register) {
        return CU_NOT_SUPPORTED;
    }
    registered[pointer] = bytes;
    return lost;
}

API cuMemHostUnregister(void *pointer)
{
    return registered.erase(pointer) ? lost : CU_INVALID_VALUE;
}

API cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t bytes, cu_stream stream)
{
    if (!in_memory(to, bytes)) {
        return CU_INVALID_VALUE;
    }
    if (is_locked(from, bytes)) {
        return put(stream, [=] {
            memcpy(host(to), from, bytes);
            return CU_SUCCESS;
        });
    }
    auto taken =
        std::make_shared<std::vector<char>>(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
    return put(stream, [=] {
        memcpy(host(to), taken->data(), bytes);
        return CU_SUCCESS;
    });
}

API cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t bytes, cu_stream stream)
{
    if (!in_memory(from, bytes)) {
        return CU_INVALID_VALUE;
    }
    return put(stream, [=] {
        memcpy(to, host(from), bytes);
        return CU_SUCCESS;
    });
}

API cuMemsetD8Async(cu_pointer to, unsigned char value, size_t bytes, cu_stream stream)
{
    if (!in_memory(to, bytes)) {
        return CU_INVALID_VALUE;
    }
    return put(stream, [=] {
        memset(host(to), value, bytes);
        return CU_SUCCESS;
    });
}

// ---- streams and events ----

API cuStreamCreate(cu_stream *stream, unsigned)
{
    *stream = new CUstream_st;
    streams.push_back(*stream);
    return lost;
}

API cuStreamDestroy_v2(cu_stream stream)
{
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream) {
            streams.erase(streams.begin() + static_cast<ptrdiff_t>(i));
            break;
        }
    }
    delete stream;
    return lost;
}

API cuStreamSynchronize(cu_stream stream)
{
    return work([=] { return stream->queue.empty(); });
}

API cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned)
{
    operation next;
    next.wait = event;
    next.wanted = event->asked;
    stream->queue.push_back(std::move(next));
    return lost;
}

API cuEventCreate(cu_event *event, unsigned)
{
    *event = new CUevent_st;
    return lost;
}

API cuEventDestroy_v2(cu_event event)
{
    delete event;
    return lost;
}

API cuEventRecord(cu_event event, cu_stream stream)
{
    event->asked++;
    operation next;
    next.record = event;
    stream->queue.push_back(std::move(next));
    return lost;
}

API cuEventSynchronize(cu_event event)
{
    uint64_t wanted = event->asked;
    return work([=] { return event->done >= wanted; });
}

// ---- kernels ----

API cuModuleLoadData(cu_module *module, const void *image)
{
    if (!image || !current) {
        return CU_INVALID_VALUE;
    }
    *module = new CUmod_st{0};
    return lost;
}

API cuModuleUnload(cu_module module)
{
    delete module;
    return lost;
}

API cuModuleGetFunction(cu_function *function, cu_module, const char *name)
{
    static std::map<std::string, CUfunc_st> functions;
    for (fake_kernel &kernel : fake_kernels()) {
        if (strcmp(kernel.name, name) == 0) {
            *function = &(functions[name] = CUfunc_st{&kernel});
            return lost;
        }
    }
    return CU_NOT_FOUND;
}

API cuFuncGetAttribute(int *value, int attribute, cu_function)
{
    *value = 128;
    return attribute == CU_FUNCTION_REGISTERS ? lost : CU_INVALID_VALUE;
}

API cuFuncSetAttribute(cu_function function, int attribute, int value)
{
    if (attribute != CU_FUNCTION_SHARED_BYTES || value < 0 || value > set.shared) {
        return CU_INVALID_VALUE;
    }
    function->kernel->shared_limit = static_cast<size_t>(value);
    return lost;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, cu_function, int threads, size_t shared_bytes)
{
    *blocks = threads <= 1024 && shared_bytes <= static_cast<size_t>(set.shared) ? 1 : 0;
    return lost;
}

API cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream stream, void **arguments,
                   void **)
{
    launch next;
    cu_result result =
        prepare(&next, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, false, arguments);
    return result ? result : give(stream, next);
}

API cuLaunchCooperativeKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream stream,
                              void **arguments)
{
    launch next;
    cu_result result =
        prepare(&next, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true, arguments);
    return result ? result : give(stream, next);
}

// ---- graphs ----

API cuStreamBeginCapture_v2(cu_stream stream, int)
{
    if (stream->capture) {
        return CU_INVALID_VALUE;
    }
    stream->capture = new std::vector<launch>;
    return lost;
}

API cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
    if (!stream->capture) {
        return CU_INVALID_VALUE;
    }
    *graph = new CUgraph_st{std::move(*stream->capture)};
    delete stream->capture;
    stream->capture = nullptr;
    return lost;
}

API cuGraphInstantiateWithFlags(cu_graph_exec *executable, cu_graph graph, unsigned long long)
{
    *executable = new CUgraphExec_st{graph->launches};
    return lost;
}

API cuGraphLaunch(cu_graph_exec executable, cu_stream stream)
{
    for (const launch &next : executable->launches) {
        cu_result result = put(stream, [&next] { return run_launch(next); });
        if (result) {
            return result;
        }
    }
    return lost;
}

API cuGraphExecDestroy(cu_graph_exec executable)
{
    delete executable;
    return lost;
}

API cuGraphDestroy(cu_graph graph)
{
    delete graph;
    return lost;
}
