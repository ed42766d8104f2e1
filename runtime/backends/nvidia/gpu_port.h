/* gpu_port.h - memory that the CPU fills or reads around a call: pinned here, and the GPU's address of it. */
#ifndef SPECC_GPU_PORT_H
#define SPECC_GPU_PORT_H
#include "abi/cuda_driver.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu_port {
  void *host;          /* [bytes] pinned */
  cuda_address device; /* the same memory where CPU and GPU share theirs, else a copy's */
  size_t bytes;
  int copied;
} gpu_port;

/* The GPU's context is entered by the caller. Zeroed here; no bytes, no memory. A port that failed half-way
 * is freed like any. */
int gpu_port_open(gpu_port *p, const cuda_gpu *gpu, size_t bytes);
void gpu_port_free(gpu_port *p, const cuda_gpu *gpu);
/* In the order of the stream; nothing to do where the memory is shared. */
int gpu_port_send(const gpu_port *p, const cuda_gpu *gpu, cuda_stream stream);
/* Starts the copy of the first `bytes` to the host. */
int gpu_port_fetch(const gpu_port *p, const cuda_gpu *gpu, cuda_stream stream, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
