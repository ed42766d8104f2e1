/* old_engine.c - a library that says it is an ONNX Runtime before the oldest accepted one; for test_ort.c. */
#include <stddef.h>
#include <stdint.h>
static const void *get_api(uint32_t version) {
  (void)version;
  return NULL;
}
static const char *get_version(void) {
  return "1.19.2";
}
static const struct {
  const void *(*api)(uint32_t);
  const char *(*version)(void);
} base = {get_api, get_version};
__attribute__((visibility("default"))) const void *OrtGetApiBase(void);
const void *OrtGetApiBase(void) {
  return &base;
}
