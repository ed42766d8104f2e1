/* specc.h - exact speculative decoding of a bundle: text faster, sampled from the target model's own law.
 *
 * This header is the manual for a program that generates text. specc_extend.h adds engines and drafters of
 * your own, specc_judge.h what a gate tool measures and certifies with. A program needs libspecc.so, an
 * engine library (ONNX Runtime) and a bundle:
 *
 *     specc_model *model; specc_session *session; specc_event event;
 *     specc_open_options open = { .folder = "smollm2-135m-cpu", .engine_library = "libonnxruntime.so.1" };
 *     if (specc_model_open(&open, &model)) die(specc_last_error());
 *     if (specc_session_create(model, &session)) die(specc_last_error());
 *     specc_request request; specc_request_default(&request);
 *     request.options.temperature = 0.8; request.max_new_tokens = 128;
 *     if (specc_session_start(session, &request, prompt_ids, n_prompt)) die(specc_last_error());
 *     do { if (specc_session_step(session, &event)) die(specc_last_error());
 *          fwrite(event.text, 1, event.n_text, stdout); } while (!event.finished);
 *     specc_session_free(session); specc_model_free(model);
 *
 * Words. K: tokens proposed in a round. p, q: target and draft distribution of one position after all
 * sampling options. Round: propose K tokens, verify K+1 rows in one target call, accept a prefix, emit one
 * more token, commit. Width: rows in one target call. Width class: widths whose rows agree bit for bit. Law:
 * what row i of the deployed target samples from at the law's width. Certificate: what was measured for one
 * engine on one device.
 *
 * The law is kept by one of two rules. `rejection`: Leviathan, Kalman, Matias, "Fast inference from
 * transformers via speculative decoding" (2023), algorithm 1; Chen et al., "Accelerating large language model
 * decoding with speculative sampling" (2023). `coupled`: the target's draw is an exponential race
 * (Gumbel-max) whose noise depends only on (seed, position, token, sample), and a drafted token is accepted
 * exactly when it equals that draw.
 *
 * Errors. Every function that returns int gives SPECC_OK (0) or a SPECC_E_ code, unless its comment says
 * otherwise; specc_last_error() then holds one sentence for the calling thread. The codes that a comment
 * lists are those of the function itself; every function that calls an engine also passes on SPECC_E_ENGINE
 * and what a backend of your own returns. The library never aborts, exits, prints, or throws. After an error
 * a session may be started again; nothing of the failed call was committed beyond what events have already
 * reported.
 *
 * Threads. A model is read-only once open and may serve many sessions from many threads. A session belongs to
 * one thread at a time: a second one is answered SPECC_E_BUSY. specc_session_cancel may be called from any
 * thread.
 *
 * Processes. In a forked child of the process that opened a model every call on it and on its sessions is
 * SPECC_E_UNSUPPORTED; only specc_session_free and specc_model_free work, and leave the engine's memory
 * alone, and what reads no engine (specc_model_info_get). A child may open models of its own. dlclose() does
 * not unmap the library. The caller's floating-point mode does not matter and is left as it was. ONNX Runtime
 * is loaded as a copy that the rest of the process does not see, its telemetry off.
 *
 * Memory. Sizes are in bytes unless a name says otherwise. Pointers handed out stay the library's and live as
 * long as their comment says. The token loop allocates nothing: every buffer is laid out by
 * specc_session_create.
 */
#ifndef SPECC_H
#define SPECC_H
#include <stddef.h>
#include <stdint.h>
#if defined(__GNUC__)
  #define SPECC_API __attribute__((visibility("default")))
#else
  #define SPECC_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain declarations only: the Python binding parses this part; SPECC_API is removed first) */

#define SPECC_VERSION 100   /* major * 10000 + minor * 100 + patch */
#define SPECC_FORMAT 1      /* newest bundle format this library reads */
#define SPECC_MAX_K 16      /* most tokens proposed in a round */
#define SPECC_MAX_WIDTHS 24 /* most row counts that one engine lists */

/* ------------------------------------------------------------------ errors */
enum specc_status {
  SPECC_OK = 0,
  SPECC_E_ARGUMENT = 1, /* a value that no request may have; the caller's mistake */
  SPECC_E_CAPACITY = 2, /* the prompt does not fit the context */
  SPECC_E_MEMORY = 3,
  SPECC_E_IO = 4,          /* a file cannot be read or written */
  SPECC_E_FORMAT = 5,      /* a file is not what its manifest says, or of a newer format */
  SPECC_E_ENGINE = 6,      /* the engine library is missing, too old, or a call of it failed */
  SPECC_E_NUMERICS = 7,    /* NaN or +infinity in the logits, or no token left after masking */
  SPECC_E_DRAFT = 8,       /* a drafter broke its contract; sessions go on without it */
  SPECC_E_BUSY = 9,        /* the session is in use by another thread */
  SPECC_E_UNSUPPORTED = 10 /* an option that this path cannot honour, refused by name */
};
/* One sentence for this thread: what was found, where, what to do. Valid until its next failing call. */
SPECC_API const char *specc_last_error(void);
/* SPECC_VERSION of the library that is loaded. */
SPECC_API int specc_version(void);
/* Size of a public struct by name, 0 if unknown; a binding checks its own layout with it. */
SPECC_API size_t specc_sizeof(const char *name);

/* ------------------------------------------------------------------ certificates
 * What was measured for one engine on one device. It says whether speculation may be on. */

/* Reasons why speculation is off, as bits. */
#define SPECC_R_REQUESTED 1
#define SPECC_R_NUMERICS 2
#define SPECC_R_UNCERTIFIED_DEVICE 4
#define SPECC_R_LINT 8
#define SPECC_R_NO_GAIN 16
#define SPECC_R_OPTION_UNSUPPORTED 32
#define SPECC_R_VOCABULARY_MISMATCH 64
#define SPECC_R_CAPACITY 128
#define SPECC_R_DRAFT_ERROR 256
/* Name of one reason, "numerics"; NULL for no such bit. */
SPECC_API const char *specc_reason_name(uint32_t bit);

enum specc_certificate_kind { SPECC_CERT_NONE = 0, SPECC_CERT_BOUNDED = 1, SPECC_CERT_BIT_EXACT = 2 };

typedef struct specc_certificate {
  int32_t kind;      /* enum specc_certificate_kind, of the widths that the runtime uses */
  int32_t law_width; /* plain decoding runs at this width */
  int32_t n_widths;
  /* as the engine lists them */
  int32_t widths[SPECC_MAX_WIDTHS];
  /* class number of each width; -1: its own rows disagree with each other */
  int32_t width_class[SPECC_MAX_WIDTHS];
  int32_t threads;
  int32_t k;        /* K that pays best on this device, 0 unknown */
  uint32_t reasons; /* SPECC_R_ bits that the judge gives; 0: speculation may be on */
  /* Upper bound (empirical Bernstein, 99.9 %) of the mean total variation between rows of one position, after
   * the sampling options that were asked for, of any two widths up to K_max + 1 rows. */
  double tv_mean;
  double tv_max;                         /* largest one observed */
  double max_abs_diff[SPECC_MAX_WIDTHS]; /* largest logit difference of a width from the law width */
  double call_ms[SPECC_MAX_WIDTHS];      /* median milliseconds of a call */
  /* Median milliseconds of one proposal of K tokens, and of one call of the draft's engine; 0: not measured,
   * or the draft has no engine. */
  double draft_ms;
  double draft_call_ms;
  int64_t rows_compared;
  int64_t rows_different[SPECC_MAX_WIDTHS]; /* rows of a width that differ from the law width */
  int64_t calls;
  /* of all rows at the law width: equal for two thread counts that agree bit for bit */
  uint64_t law_hash;
  /* positions behind tv_mean and flips; 0 where no width differs, or none was asked for */
  int64_t tv_rows;
  int64_t flips;      /* of those, whose most probable id is another one */
  double flip_margin; /* largest lead of the first id over the second among them, in the reference's logits */
  /* calls that gave other bits when they were repeated as they were: such an engine is never certified */
  int64_t unrepeatable;
  /* the gravest thing seen, in words; "" for nothing. Widths of another class are named and are no fault */
  char evidence[200];
} specc_certificate;

/* ------------------------------------------------------------------ models */
typedef struct specc_model specc_model;

typedef struct specc_open_options {
  const char *folder;           /* the bundle */
  const char *engine_library;   /* path of libonnxruntime, NULL for the loader's own search */
  const char *certificates;     /* a further folder with certificates, NULL for none */
  int32_t threads;              /* 0: as the bundle's plan says */
  int32_t trust;                /* 1: sizes are checked, hashes are not */
  const char *tensorrt_library; /* path of libnvinfer or libtensorrt_rtx, NULL for the loader's own search */
  const char *provider_library; /* a plugin provider of ONNX Runtime that the manifest names, NULL for none */
} specc_open_options;
/* Opens a bundle: checks its files, loads the engines, puts the certificate of this device in force. *model
 * is NULL on failure. SPECC_E_ARGUMENT, SPECC_E_MEMORY, SPECC_E_IO, SPECC_E_FORMAT (damaged, or of a newer
 * format), SPECC_E_ENGINE (no engine library), SPECC_E_UNSUPPORTED (a part that this build has not). */
SPECC_API int specc_model_open(const specc_open_options *options, specc_model **model);

typedef struct specc_model_info {
  int32_t n_ids, vocab, context, capacity, k_max, chunk, threads, n_eos;
  int32_t enabled;  /* 1: speculation is on for requests that ask for it */
  uint32_t reasons; /* SPECC_R_ bits, 0 when enabled */
  /* the next five and `fingerprint` live as long as the model; "" if none */
  const char *backend, *backend_version, *drafter, *engine_sha256, *digest;
  const char *device;            /* what computes: a GPU's or the CPU's name; certificates are bound to it */
  const char *fingerprint;       /* SHA-256 of what identifies that device, as certificates hold it */
  const int32_t *eos;            /* [n_eos] */
  specc_certificate certificate; /* the one in force; kind NONE if none fits this device */
} specc_model_info;
/* What was opened, and whether speculation is on and why. SPECC_E_ARGUMENT. */
SPECC_API int specc_model_info_get(const specc_model *model, specc_model_info *info);
/* Why the certificate file at `path` is in force for this model on this device, or why not: one sentence into
 * note [n_note]. Returns 1 if it fits, 0 if not. */
SPECC_API int specc_certificate_explain(
    const specc_model *model, const char *path, char *note, size_t n_note);
/* The CPU's model into name [n_name], the SHA-256 of model and flags into fingerprint [n_fingerprint]. Always
 * SPECC_OK. */
SPECC_API int specc_device(char *name, size_t n_name, char *fingerprint, size_t n_fingerprint);
/* Instructions that the CPU operators use here: "scalar", "avx2", "avx-vnni", "avx512-vnni", "neon-dotprod";
 * the fastest that this CPU has and that gave the scalar code's bits when it was tried. SPECC_KERNELS in the
 * environment names another one. */
SPECC_API const char *specc_kernels(void);

/* ------------------------------------------------------------------ requests
 * Order of the options, the same for draft and target and for accepted, replacement and bonus slots:
 * repetition, presence and frequency penalty; logit bias; temperature; top_k; top_p; min_p. Ties keep the
 * lower id, at least one token always survives. Anything outside the ranges below is SPECC_E_ARGUMENT. */
typedef struct specc_options {
  double temperature; /* >= 0, finite; exactly 0 is argmax (lowest id on ties), anything above samples */
  double top_p; /* (0, 1]: a token stays while the mass before it, in falling order, is < top_p; 1 off */
  double min_p; /* [0, 1]: a token stays if its probability >= min_p times the largest; 0 off */
  double repetition_penalty; /* > 0: ids of prompt and output; logit / r if positive, * r if not; 1 off */
  double presence_penalty;   /* finite: subtracted once for an id that is in the output; 0 off */
  double frequency_penalty;  /* finite: subtracted per occurrence in the output; 0 off */
  int32_t top_k;             /* >= 0: so many most probable ids stay; 0 off */
  int32_t n_bias;
  const int32_t *bias_ids;   /* [n_bias] ids in range, each once; copied by specc_session_start */
  const double *bias_values; /* [n_bias] added to the logits; -INFINITY bans, NaN and +INFINITY are refused */
} specc_options;

enum specc_rule { SPECC_RULE_REJECTION = 0, SPECC_RULE_COUPLED = 1 };

typedef struct specc_request {
  specc_options options;
  int32_t rule;           /* enum specc_rule; at temperature 0 both are exact argmax */
  int32_t speculation;    /* 1: on where the certificate allows it, 0: off with reason `requested` */
  int32_t k;              /* 1..K_max of the bundle; 0: the certificate's choice */
  int32_t max_new_tokens; /* >= 0 */
  int32_t min_new_tokens; /* >= 0: end tokens are banned until so many are out (a mask before the draw) */
  int32_t ignore_eos;     /* 1: end tokens are ordinary tokens */
  int32_t seeded;         /* 0: a fresh seed from the system, reported by specc_session_seed */
  uint32_t sample;        /* sample or fork number: n samples of one seed are independent */
  uint64_t seed;
  /* [n_stop] UTF-8 strings; text ends before the first, ids with the token that completes it */
  const char *const *stop;
  int32_t n_stop;   /* <= 16, each of 1 to 256 bytes */
  int32_t reserved; /* 0 */
} specc_request;
/* Temperature 1, no filter, rejection, speculation on, 256 tokens. */
SPECC_API void specc_request_default(specc_request *request);

/* ------------------------------------------------------------------ sessions: one text at a time */
typedef struct specc_session specc_session;

enum specc_finish {
  SPECC_RUNNING = 0,
  SPECC_FINISH_STOP = 1,     /* an end token or a stop string */
  SPECC_FINISH_LENGTH = 2,   /* max_new_tokens, or the context is full */
  SPECC_FINISH_CANCELLED = 3 /* specc_session_cancel */
};

typedef struct specc_event { /* what one step did; pointers live until the next call on the session */
  int32_t finished;          /* enum specc_finish */
  int32_t prefill;           /* 1: a prompt chunk was read; 0: a round */
  int32_t proposed;          /* nodes put to the target */
  int32_t accepted;          /* of those, before end token, stop string or max_new_tokens cut the round */
  int32_t n_tokens;          /* ids committed by this step */
  int32_t n_text; /* bytes of whole UTF-8 that may be shown: held back while a stop string may be forming */
  const int32_t *tokens;
  const char *text;
  const int32_t *drafted; /* [proposed] */
} specc_event;

/* Lays out a session's caches and buffers; *session is NULL on failure. The model must outlive it.
 * SPECC_E_ARGUMENT, SPECC_E_MEMORY. */
SPECC_API int specc_session_create(specc_model *model, specc_session **session);
/* Begins a generation: checks the request and the prompt, calls no engine. ids [n] must be 1..context-1 many,
 * in range. What the cache still holds of an earlier generation is kept where that is exact (shared prefix,
 * prefill width in the law's class). SPECC_E_ARGUMENT, SPECC_E_CAPACITY (the prompt is too long),
 * SPECC_E_BUSY, SPECC_E_UNSUPPORTED (stop strings without text of the ids). */
SPECC_API int specc_session_start(
    specc_session *session, const specc_request *request, const int32_t *ids, int32_t n);
/* One prompt chunk or one round. SPECC_E_ARGUMENT (nothing was started), SPECC_E_BUSY, SPECC_E_NUMERICS,
 * SPECC_E_ENGINE. */
SPECC_API int specc_session_step(specc_session *session, specc_event *event);
/* Steps until finished; on_event may be NULL, non-zero from it cancels. Codes as specc_session_step. */
SPECC_API int specc_session_run(
    specc_session *session, int (*on_event)(void *user, const specc_event *event), void *user);
/* Any thread; takes effect within one engine call. */
SPECC_API void specc_session_cancel(specc_session *session);
/* Prompt and output, [*n_tokens] ids of which the first *n_prompt are the prompt. For the thread that steps
 * the session, between steps; valid until its next step. NULL without a session. */
SPECC_API const int32_t *specc_session_tokens(
    const specc_session *session, int32_t *n_prompt, int32_t *n_tokens);
/* The seed that the generation uses; for the same thread. */
SPECC_API uint64_t specc_session_seed(const specc_session *session);

typedef struct specc_stats {
  int64_t target_calls, draft_calls, prefill_calls, rounds, rounds_proposing;
  int64_t proposed, accepted, emitted;
  int64_t accepted_length[SPECC_MAX_K + 1];      /* rounds by accepted length; only rounds that proposed */
  double seconds, target_seconds, draft_seconds; /* decoding only: prefill is apart */
  double prefill_seconds;
  uint32_t reasons; /* why speculation was off in this request, 0 if it was on */
  int32_t enabled;
  int32_t target_length; /* target cache entries that count, now */
  int32_t draft_length;  /* draft cache entries before the last proposal, -1 without such a cache */
  int32_t finished;      /* enum specc_finish */
  int32_t reserved;
  int64_t rounds_paused; /* rounds that proposed nothing because proposals had not paid */
} specc_stats;
/* Numbers of the generation so far. SPECC_E_ARGUMENT, SPECC_E_BUSY. */
SPECC_API int specc_session_stats(const specc_session *session, specc_stats *stats);

/* NULL is fine. */
SPECC_API void specc_session_free(specc_session *session);
/* NULL is fine; its sessions must be freed before. */
SPECC_API void specc_model_free(specc_model *model);
/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
