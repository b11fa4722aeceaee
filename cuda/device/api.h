/*
 * The functions of the driver API that the GPU engine calls, with our own prototypes: the ABI that NVIDIA documents in
 * the CUDA Driver API reference and keeps stable under these (versioned) names. tests/cuda/check_api.c compares them
 * with a toolkit's <cuda.h>, if there is one.
 */
#ifndef CUDA_DEVICE_API_H
#define CUDA_DEVICE_API_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_TYPES_ARE_NVIDIAS

/* Handles are opaque; all but the first two are pointers. */
typedef int cu_device;
typedef unsigned long long cu_pointer;
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;
typedef int cu_result;

/* Of the enums below. */
typedef int cu_attribute;
typedef int cu_function_attribute;
typedef int cu_capture_mode;

typedef struct {
    char bytes[16];
} cu_uuid;

#endif

enum {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_IMAGE = 200,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_NOT_FOUND = 500,
    CU_LAUNCH_OUT_OF_RESOURCES = 701,
    CU_LAUNCH_FAILED = 719,
    CU_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    CU_NOT_SUPPORTED = 801,
    CU_SYSTEM_DRIVER_MISMATCH = 803,
};

enum {
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_MAJOR = 75,
    CU_ATTRIBUTE_MINOR = 76,
    CU_ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
    CU_ATTRIBUTE_SHARED_BYTES = 97, /* of a block that requests more than the usual 48 KiB */
    CU_ATTRIBUTE_HOST_REGISTER = 99,

    CU_FUNCTION_REGISTERS = 4,
    CU_FUNCTION_SHARED_BYTES = 8, /* dynamic shared memory that launches may request */

    CU_STREAM_OWN_ORDER = 1,     /* CU_STREAM_NON_BLOCKING */
    CU_EVENT_WITHOUT_TIMING = 2, /* CU_EVENT_DISABLE_TIMING */
    CU_CAPTURE_THREAD_LOCAL = 1,
};

/* F(name, symbol, parameters) for each. */
#define CUDA_DRIVER_FUNCTIONS(F)                                                                                       \
    F(init, cuInit, (unsigned flags))                                                                                  \
    F(driver_version, cuDriverGetVersion, (int *version))                                                              \
    F(error_name, cuGetErrorName, (cu_result result, const char **text))                                               \
    F(error_string, cuGetErrorString, (cu_result result, const char **text))                                           \
    F(device_count, cuDeviceGetCount, (int *count))                                                                    \
    F(device_get, cuDeviceGet, (cu_device * device, int ordinal))                                                      \
    F(device_name, cuDeviceGetName, (char *name, int size, cu_device device))                                          \
    F(device_uuid, cuDeviceGetUuid_v2, (cu_uuid * uuid, cu_device device))                                             \
    F(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, cu_device device))                                          \
    F(device_attribute, cuDeviceGetAttribute, (int *value, cu_attribute attribute, cu_device device))                  \
    F(context_retain, cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device))                              \
    F(context_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                                               \
    F(context_set, cuCtxSetCurrent, (cu_context context))                                                              \
    F(memory_info, cuMemGetInfo_v2, (size_t * left, size_t * total))                                                   \
    F(allocate, cuMemAlloc_v2, (cu_pointer * pointer, size_t bytes))                                                   \
    F(release, cuMemFree_v2, (cu_pointer pointer))                                                                     \
    F(host_allocate, cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                                   \
    F(host_release, cuMemFreeHost, (void *pointer))                                                                    \
    F(host_register, cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags))                              \
    F(host_unregister, cuMemHostUnregister, (void *pointer))                                                           \
    F(copy_to_device, cuMemcpyHtoDAsync_v2, (cu_pointer to, const void *from, size_t bytes, cu_stream stream))         \
    F(copy_to_host, cuMemcpyDtoHAsync_v2, (void *to, cu_pointer from, size_t bytes, cu_stream stream))                 \
    F(set_bytes, cuMemsetD8Async, (cu_pointer to, unsigned char value, size_t bytes, cu_stream stream))                \
    F(stream_create, cuStreamCreate, (cu_stream * stream, unsigned flags))                                             \
    F(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                                                          \
    F(stream_wait, cuStreamSynchronize, (cu_stream stream))                                                            \
    F(stream_wait_event, cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned flags))                        \
    F(event_create, cuEventCreate, (cu_event * event, unsigned flags))                                                 \
    F(event_destroy, cuEventDestroy_v2, (cu_event event))                                                              \
    F(event_record, cuEventRecord, (cu_event event, cu_stream stream))                                                 \
    F(event_wait, cuEventSynchronize, (cu_event event))                                                                \
    F(module_load, cuModuleLoadData, (cu_module * module, const void *image))                                          \
    F(module_unload, cuModuleUnload, (cu_module module))                                                               \
    F(module_function, cuModuleGetFunction, (cu_function * function, cu_module module, const char *name))              \
    F(function_get, cuFuncGetAttribute, (int *value, cu_function_attribute attribute, cu_function function))           \
    F(function_set, cuFuncSetAttribute, (cu_function function, cu_function_attribute attribute, int value))            \
    F(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                          \
      (int *blocks, cu_function function, int threads, size_t shared_bytes))                                           \
    F(launch, cuLaunchKernel,                                                                                          \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,    \
       unsigned block_z, unsigned shared_bytes, cu_stream stream, void **arguments, void **extra))                     \
    F(launch_cooperative, cuLaunchCooperativeKernel,                                                                   \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,    \
       unsigned block_z, unsigned shared_bytes, cu_stream stream, void **arguments))                                   \
    F(capture_begin, cuStreamBeginCapture_v2, (cu_stream stream, cu_capture_mode mode))                                \
    F(capture_end, cuStreamEndCapture, (cu_stream stream, cu_graph * graph))                                           \
    F(graph_instantiate, cuGraphInstantiateWithFlags,                                                                  \
      (cu_graph_exec * executable, cu_graph graph, unsigned long long flags))                                          \
    F(graph_launch, cuGraphLaunch, (cu_graph_exec executable, cu_stream stream))                                       \
    F(graph_exec_destroy, cuGraphExecDestroy, (cu_graph_exec executable))                                              \
    F(graph_destroy, cuGraphDestroy, (cu_graph graph))

#endif
