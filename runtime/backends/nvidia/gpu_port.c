/* gpu_port.c - ids in and logits out: copied over the bus where the GPU has memory of its own, not at all
 * where it shares ours. */
#include "backends/nvidia/gpu_port.h"
#include <stdlib.h>
#include <string.h>

#define CLOSE_OTHERS "lower the context or close other programs"
#define AGAIN "run `specc finalize` on this device, or build the bundle again"

int gpu_port_open(gpu_port *p, const cuda_gpu *gpu, size_t bytes) {
  const cuda_driver *d = gpu->driver;
  *p = (gpu_port){.bytes = bytes, .copied = !gpu->integrated};
  if (!bytes) return 0;
  int code = cuda_check(d, d->host_alloc(&p->host, bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED),
      "could not allocate pinned memory", CLOSE_OTHERS);
  if (code) return code;
  memset(p->host, 0, bytes);
  if (p->copied)
    return cuda_check(d, d->alloc(&p->device, bytes), "could not allocate a call's buffers", CLOSE_OTHERS);
  return cuda_check(d, d->host_address(&p->device, p->host, 0), "could not map pinned memory", CLOSE_OTHERS);
}

void gpu_port_free(gpu_port *p, const cuda_gpu *gpu) {
  if (p->copied && p->device) gpu->driver->free(p->device);
  if (p->host) gpu->driver->host_free(p->host);
  *p = (gpu_port){0};
}

int gpu_port_send(const gpu_port *p, const cuda_gpu *gpu, cuda_stream stream) {
  if (!p->copied || !p->bytes) return 0;
  return cuda_check(gpu->driver, gpu->driver->to_device(p->device, p->host, p->bytes, stream),
      "could not copy a call's inputs", AGAIN);
}

int gpu_port_fetch(const gpu_port *p, const cuda_gpu *gpu, cuda_stream stream, size_t bytes) {
  if (!p->copied || !bytes) return 0;
  return cuda_check(gpu->driver, gpu->driver->to_host(p->host, p->device, bytes, stream),
      "could not copy a call's results", AGAIN);
}
