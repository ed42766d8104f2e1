/* error.c - the last error of a thread, versions, struct sizes, reason names, fault switches of the controls
 * library. */
#include "core/internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static _Thread_local char last_error[1024];

int specc_error(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return code;
}

int specc_fail(int code, const char *message) {
  return specc_error(code, "%s", message ? message : "no message given");
}
const char *specc_last_error(void) {
  return last_error;
}
int specc_version(void) {
  return SPECC_VERSION;
}

size_t specc_sizeof(const char *name) {
#define SIZE(type)                                                                                           \
  {                                                                                                          \
    #type, sizeof(type)                                                                                      \
  }
  static const struct {
    const char *name;
    size_t size;
  } sizes[] = {SIZE(specc_judging), SIZE(specc_draft_map), SIZE(specc_head_options),
      SIZE(specc_hierarchy_options), SIZE(specc_gpu), SIZE(specc_tensorrt_options), SIZE(specc_options),
      SIZE(specc_request), SIZE(specc_io), SIZE(specc_backend), SIZE(specc_ort_options),
      SIZE(specc_draft_context), SIZE(specc_proposal), SIZE(specc_drafter), SIZE(specc_certificate),
      SIZE(specc_certify_options), SIZE(specc_open_options), SIZE(specc_model_parts), SIZE(specc_model_info),
      SIZE(specc_event), SIZE(specc_stats), SIZE(specc_decision)};
#undef SIZE
  for (size_t i = 0; name && i < sizeof sizes / sizeof *sizes; i++)
    if (!strcmp(name, sizes[i].name)) return sizes[i].size;
  return 0;
}

static const char *const reason_names[] = {"requested", "numerics", "uncertified-device", "lint", "no-gain",
    "option-unsupported", "vocabulary-mismatch", "capacity", "draft-error"};

const char *specc_reason_name(uint32_t bit) {
  for (size_t i = 0; i < sizeof reason_names / sizeof *reason_names; i++)
    if (bit == 1u << i) return reason_names[i];
  return NULL;
}

double specc_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
