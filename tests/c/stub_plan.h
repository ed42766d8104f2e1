/* stub_plan.h - what a plan of stub_tensorrt.cpp holds. */
#ifndef STUB_PLAN_H
#define STUB_PLAN_H
#include <stdint.h>

#define STUB_MAGIC 0x706c616e
#define STUB_LAYERS 4
#define STUB_WIDTH_FAULT 1 /* one row alone gives other bits */
#define STUB_TYPE_FAULT 2  /* an input of another type */
#define STUB_EXTRA_FAULT 3 /* one tensor more */
#define STUB_SWAP_FAULT 4  /* the first two profiles are swapped */

typedef struct stub_plan {
  int32_t magic, layers, kv_heads, head_dim, capacity, vocab, hidden, n_widths, widths[24], cache_type,
      rows_out, fault;
  uint64_t owner;
} stub_plan;
#endif
