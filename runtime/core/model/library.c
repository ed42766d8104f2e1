/* library.c - what a binding asks of the library itself: version, struct sizes, names of the reasons. */
#include "specc_judge.h"
#include <string.h>

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
  } sizes[] = {SIZE(specc_round), SIZE(specc_draft_map), SIZE(specc_head_options),
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
