/* ort_device.c - providers of ONNX Runtime for NVIDIA GPUs: its own for CUDA, and plugins that bring a
 * library. */
#include "backends/ort/ort_device.h"
#include "core/io/error.h"
#include <stdlib.h>

#define ANOTHER "check the provider's options in the manifest, or build the bundle again"

/* ------------------------------------------------------------------ the GPU */
static int make_memory(ort_device *d, const library *lib, int32_t gpu) {
  OrtStatus *status =
      lib->api.CreateMemoryInfo("Cuda", ORT_DEVICE_ALLOCATOR, gpu, ORT_MEMORY_DEFAULT, &d->memory);
  return ort_check(lib, status, "could not describe", "the GPU's memory", "install another version");
}

int ort_device_open(ort_device **out, const library *lib, const specc_ort_options *o) {
  ort_device *d = *out = calloc(1, sizeof *d);
  if (!d) return specc_error(SPECC_E_MEMORY, "no memory left for an engine; close other programs");
  int code = cuda_open(o->gpu, &d->gpu);
  if (!code) code = cuda_enter(&d->gpu);
  if (code) return code;
  code = cuda_check(d->gpu.driver, d->gpu.driver->stream_create(&d->stream, CUDA_STREAM_NON_BLOCKING),
      "could not make a stream", "close other programs");
  cuda_leave(&d->gpu);
  return code ? code : make_memory(d, lib, o->gpu);
}

void ort_device_close(ort_device *d, const library *lib) {
  if (!d) return;
  if (d->memory) lib->api.ReleaseMemoryInfo(d->memory);
  if (d->stream && !cuda_enter(&d->gpu)) d->gpu.driver->stream_destroy(d->stream), cuda_leave(&d->gpu);
  cuda_close(&d->gpu);
  free(d);
}

int ort_device_pinned(const ort_device *d, size_t bytes, void **out) {
  int code = cuda_enter(&d->gpu);
  if (code) return code;
  code = cuda_check(d->gpu.driver, d->gpu.driver->host_alloc(out, bytes, CUDA_HOST_PORTABLE),
      "could not allocate pinned memory", "close other programs");
  cuda_leave(&d->gpu);
  if (!code) memset(*out, 0, bytes);
  return code;
}

void ort_device_unpin(const ort_device *d, void *memory) {
  if (!memory || cuda_enter(&d->gpu)) return;
  d->gpu.driver->host_free(memory);
  cuda_leave(&d->gpu);
}

int ort_device_cache(const ort_device *d, gpu_cache *cache) {
  int code = cuda_enter(&d->gpu);
  if (code) return code;
  code = gpu_cache_create(cache, &d->gpu, d->stream);
  cuda_leave(&d->gpu);
  return code;
}

void ort_device_uncache(const ort_device *d, gpu_cache *cache) {
  if (cuda_enter(&d->gpu)) return;
  gpu_cache_free(cache, &d->gpu);
  cuda_leave(&d->gpu);
}

int ort_device_fill(const ort_device *d, const gpu_cache *cache, int32_t from, float value) {
  int code = cuda_enter(&d->gpu);
  if (code) return code;
  code = gpu_cache_fill(cache, &d->gpu, d->stream, from, value);
  cuda_leave(&d->gpu);
  return code;
}

/* ------------------------------------------------------------------ providers */
/* ONNX Runtime's own. A library without it answers with an error; one without a driver would, had we not
 * looked first. */
static int append_cuda(const library *lib, OrtSessionOptions *options, const specc_ort_options *o) {
  const ort_api *api = &lib->api;
  OrtCUDAProviderOptionsV2 *cuda = NULL;
  const char *advice = "install onnxruntime-gpu of this version with the CUDA and cuDNN that it asks for";
  int code = ort_check(lib, api->CreateCUDAProviderOptions(&cuda), "has no provider", o->provider, advice);
  if (code) return code;
  if (o->n_provider_options)
    code = ort_check(lib,
        api->UpdateCUDAProviderOptions(
            cuda, o->provider_keys, o->provider_values, (size_t)o->n_provider_options),
        "could not take options of", o->provider,
        "install the CUDA and cuDNN libraries that onnxruntime-gpu asks for (pip install "
        "onnxruntime-gpu[cuda,cudnn]), or check the options");
  if (!code)
    code = ort_check(lib, api->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda),
        "could not start", o->provider, advice);
  api->ReleaseCUDAProviderOptions(cuda);
  return code;
}

/* A plugin registers itself once in an environment; a second time is an error that says so, and no harm. */
static int register_plugin(const library *lib, const specc_ort_options *o) {
  if (!lib->api.RegisterExecutionProviderLibrary)
    return specc_error(SPECC_E_ENGINE,
        "the provider %s is a plugin, which ONNX Runtime %s does not take; install 1.23 or later",
        o->provider, lib->version);
  if (!o->provider_library)
    return specc_error(SPECC_E_ENGINE,
        "the provider %s needs its plugin; install onnxruntime-ep-nv-tensorrt-rtx-cu13 or name its library",
        o->provider);
  OrtStatus *status = lib->api.RegisterExecutionProviderLibrary(lib->env, o->provider, o->provider_library);
  if (status && strstr(lib->api.GetErrorMessage(status), "already"))
    return lib->api.ReleaseStatus(status), SPECC_OK;
  return ort_check(lib, status, "could not load the plugin", o->provider_library,
      "install the plugin for this version of ONNX Runtime");
}

static const OrtEpDevice *find_plugin_device(
    const library *lib, const specc_ort_options *o, const OrtEpDevice *const *devices, size_t n) {
  int32_t seen = 0;
  for (size_t i = 0; i < n; i++)
    if (!strcmp(lib->api.EpDevice_EpName(devices[i]), o->provider) && seen++ == o->gpu) return devices[i];
  return NULL;
}

static int append_plugin(const library *lib, OrtSessionOptions *options, const specc_ort_options *o) {
  const OrtEpDevice *const *devices = NULL;
  size_t n = 0;
  int code = register_plugin(lib, o);
  if (!code)
    code = ort_check(lib, lib->api.GetEpDevices(lib->env, &devices, &n), "could not list", "devices",
        "install another version");
  if (code) return code;
  const OrtEpDevice *device = find_plugin_device(lib, o, devices, n);
  if (!device)
    return specc_error(SPECC_E_ENGINE,
        "the plugin %s offers no GPU number %d here; update the driver or choose another target", o->provider,
        o->gpu);
  OrtStatus *status = lib->api.SessionOptionsAppendExecutionProvider_V2(
      options, lib->env, &device, 1, o->provider_keys, o->provider_values, (size_t)o->n_provider_options);
  return ort_check(lib, status, "could not start", o->provider, ANOTHER);
}

int ort_device_append(const library *lib, OrtSessionOptions *options, const specc_ort_options *o) {
  return !strcmp(o->provider, "CUDAExecutionProvider") ? append_cuda(lib, options, o)
                                                       : append_plugin(lib, options, o);
}
