/* stub_version.c - what a libnvinfer says of itself, and nothing else. STUB_TENSORRT_VERSION in the
 * environment: "10.3.0.30". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int32_t part(int which) {
  int v[4] = {10, 3, 0, 30};
  const char *text = getenv("STUB_TENSORRT_VERSION");
  if (text) sscanf(text, "%d.%d.%d.%d", &v[0], &v[1], &v[2], &v[3]);
  return v[which];
}
int32_t getInferLibMajorVersion(void) {
  return part(0);
}
int32_t getInferLibMinorVersion(void) {
  return part(1);
}
int32_t getInferLibPatchVersion(void) {
  return part(2);
}
int32_t getInferLibBuildVersion(void) {
  return part(3);
}
int32_t getInferLibVersion(void) {
  return part(0) * 10000 + part(1) * 100 + part(2);
}
