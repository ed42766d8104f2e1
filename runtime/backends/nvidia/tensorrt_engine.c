/* tensorrt_engine.c - errors and the end of a TensorRT engine, for tensorrt.c and tensorrt.cpp alike. */
#include "backends/nvidia/tensorrt.h"
#include "core/io/error.h"
#include "core/io/process.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int tensorrt_error(int code, const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return specc_error(code, "%s", text);
}

void tensorrt_forget_plan(tensorrt_engine *e) {
  if (e->plan) munmap((void *)(uintptr_t)e->plan, e->plan_bytes);
  e->plan = NULL;
}

void tensorrt_engine_free(tensorrt_engine *e) {
  tensorrt_forget_plan(e);
  if (e->library && SPECC_IS_OPENER(e->gpu.opener)) dlclose(e->library);
  cuda_close(&e->gpu);
  free(e);
}
