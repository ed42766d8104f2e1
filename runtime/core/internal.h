/* internal.h - what the pieces of libspecc share and a program does not see. */
#ifndef SPECC_INTERNAL_H
#define SPECC_INTERNAL_H
#include "specc.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* One sentence for this thread, printf style; returns code, so that `return specc_error(...)` reads well. */
int specc_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Faults that the gate's negative controls put back, one name each. They exist only in libspecc_controls.so,
 * which is the same source compiled with SPECC_CONTROLS; in the shipped library the macro is the constant 0.
 */
#ifdef SPECC_CONTROLS
  #define SPECC_FAULTS(X)                                                                                    \
    X(argmax_replacement)    /* a rejected slot takes the most probable token */                             \
    X(no_residual)           /* a rejected slot draws from p, not from (p-q)+ */                             \
    X(bonus_row)             /* the bonus token is drawn from the row before */                              \
    X(options_on_bonus_only) /* verified slots skip logit bias and filters (R05) */                          \
    X(extra_token)           /* one more token after full acceptance, from the last row again */             \
    X(q_other_options)       /* the draft's q is built without filters, its draw with them (R02) */          \
    X(q_temperature)         /* the draft's q is of another temperature than its draw */                     \
    X(q_of_argmax)           /* the draft's most probable token goes out with a soft q (R02) */              \
    X(drop_low_q)            /* a drawn token of low q is not sent (once drawn, judged) */                   \
    X(middle_accepted_only)  /* a middle model sends what it accepted, not what it put in place of the rest  \
                              */                                                                             \
    X(middle_same_random)    /* a middle model judges with the numbers that the target judges with */        \
    X(tree_unchecked)        /* a proposed tree is taken for a chain (R61) */                                \
    X(map_unchecked)         /* a draft's map to the target's ids is taken as it comes (R62) */              \
    X(always_proposes)       /* no proposal is weighed and nothing ever pauses (R58) */                      \
    X(k_from_discarded)      /* the next K looks at what was dropped */                                      \
    X(penalty_half)          /* penalties see committed tokens only, not the round's own (R09) */            \
    X(eos_last_only)         /* end tokens are looked for in the last slot of a round only (R03) */          \
    X(stop_last_only)        /* stop strings are looked for once, after the whole round (R04) */             \
    X(draft_cache_behind)    /* after full acceptance the draft is not fed its last token (R16) */           \
    X(position_off_by_one)   /* past length counts the token about to be fed (R18) */                        \
    X(shared_random)         /* draws come from one generator of the process (R11) */                        \
    X(constant_seed)         /* unseeded requests start from one constant (R12) */                           \
    X(accept_nan)            /* NaN rows go through argmax (R13) */                                          \
    X(top_p_extra)           /* nucleus keeps one token too many on an exact hit (R06) */                    \
    X(greedy_threshold)      /* small temperatures are greedy in verify only (R07) */                        \
    X(no_clamp)              /* lookahead is not clamped by the context (R17) */                             \
    X(stale_entries)         /* rollback forgets to lower the length (R19, R41) */                           \
    X(vocabulary_width)      /* the width of the head is taken for the number of ids (R21) */                \
    X(split_text)            /* each token is decoded alone (R24) */                                         \
    X(first_eos_only)        /* a list of end tokens is cut to its first (R25) */                            \
    X(ignore_cancel)         /* the cancel flag is stored and never read (R54) */                            \
    X(empty_prompt)          /* a prompt of no tokens reaches the loop (R55) */                              \
    X(prompt_limit)          /* the longest prompt is counted in cache slots, not in the context (R56) */    \
    X(swallowed_nan)         /* a block of activations that is not finite counts as zeros (R13) */           \
    X(block_left_out)        /* products leave their last block of inputs out (R37) */                       \
    X(pairs_saturate)        /* products of bytes are added up in pairs of 16 bits that saturate (R39) */    \
    X(numerics_unchecked)    /* the judge of widths passes every row (R01) */
  #define SPECC_FAULT_ENUM(name) SPECC_FAULT_##name,
enum specc_fault_id { SPECC_FAULT_none, SPECC_FAULTS(SPECC_FAULT_ENUM) SPECC_FAULT_count };
extern _Atomic int specc_fault_active;
SPECC_API int specc_fault_set(
    const char *name); /* controls library only; "none" ends it; -1 for no such fault */
SPECC_API const char *specc_fault_name(int index); /* NULL past the end */
  #define SPECC_FAULT(name)                                                                                  \
    (atomic_load_explicit(&specc_fault_active, memory_order_relaxed) == SPECC_FAULT_##name)
#else
  #define SPECC_FAULT(name) 0
#endif

/* Hot loops get one clone per instruction set; without contraction every clone gives the same bits. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SPECC_SANITIZE)
  #define SPECC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
  #define SPECC_CLONES
#endif

struct specc_model {
  specc_backend target;
  specc_drafter drafter; /* name NULL: none */
  int32_t n_ids, context, k_max, chunk, threads, strip_leading_space;
  int32_t n_eos, *eos;
  uint8_t *bytes;    /* id to text; NULL: no text */
  uint32_t *offsets; /* [n_ids + 1] */
  int32_t max_token_bytes;
  uint32_t lint; /* SPECC_R_LINT or SPECC_R_VOCABULARY_MISMATCH that the build found, kept whatever a
                    certificate says */
  specc_certificate certificate;
  char digest[65], engine_sha256[65];
  char device[256], fingerprint[65]; /* of the GPU or the CPU that computes: what certificates are bound to */
  /* what the certificate means for the loop, set by specc_model_certify */
  uint32_t reasons; /* 0: speculation may be on */
  int32_t law_width;
  int32_t prefill_in_class; /* 1: the cache is an exact function of the ids, prefixes may be kept */
  int32_t verify_width[SPECC_MAX_K + 1]; /* smallest usable width for k tokens; 0: none */
};

/* bundle.c: SHA-256 and the manifest; certificate files */
typedef struct specc_sha256 {
  uint32_t state[8];
  uint64_t length;
  uint8_t block[64];
} specc_sha256;
void specc_sha256_begin(specc_sha256 *h);
void specc_sha256_add(specc_sha256 *h, const void *data, size_t n);
void specc_sha256_end(specc_sha256 *h, char hex[65]);
/* Finds a certificate for this model and device in folder; leaves *certificate alone if there is none. */
int specc_certificate_find(
    const struct specc_model *model, const char *folder, specc_certificate *certificate);

double specc_now(void); /* seconds, monotonic; for statistics only, never for a decision */
#endif
