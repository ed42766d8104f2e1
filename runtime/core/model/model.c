/* model.c - a model: target engine, drafter, id texts and the certificate in force, which decides whether
 * speculation is on. Read-only once sessions run. */
#include "core/model/model.h"
#include "core/io/error.h"
#include "core/io/process.h"
#include "specc_judge.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_parts(const specc_model_parts *p) {
#define REFUSE(condition, ...)                                                                               \
  do {                                                                                                       \
    if (condition) return specc_error(SPECC_E_ARGUMENT, __VA_ARGS__);                                        \
  } while (0)
  REFUSE(!p || !p->target || !p->target->open || !p->target->run || !p->target->close,
      "a model needs a target backend with open, run and close");
  const specc_backend *t = p->target;
  REFUSE(p->n_ids < 1, "n_ids is %d; a model needs at least one id", p->n_ids);
  REFUSE(t->vocab < 1, "the target has %d logits; it needs at least one", t->vocab);
  REFUSE(p->k_max < 1 || p->k_max > SPECC_MAX_K, "k_max is %d; give 1 to %d", p->k_max, SPECC_MAX_K);
  REFUSE(p->context < 2, "the context is %d tokens; give at least 2", p->context);
  REFUSE(t->n_widths < 1 || t->n_widths > SPECC_MAX_WIDTHS, "the target lists %d widths; give 1 to %d",
      t->n_widths, SPECC_MAX_WIDTHS);
  for (int32_t i = 0; i < t->n_widths; i++)
    REFUSE(t->widths[i] < 1 || (i && t->widths[i] <= t->widths[i - 1]),
        "the target's widths must rise from 1; place %d is %d", i, t->widths[i]);
  int64_t needed = (int64_t)p->context + t->widths[t->n_widths - 1];
  REFUSE(t->capacity < needed, "the cache holds %d entries; a context of %d at width %d needs %lld",
      t->capacity, p->context, t->widths[t->n_widths - 1], (long long)needed);
  REFUSE(p->n_eos < 0 || (p->n_eos && !p->eos), "%d end tokens were announced and none given", p->n_eos);
  for (int32_t i = 0; i < p->n_eos; i++)
    REFUSE(p->eos[i] < 0 || p->eos[i] >= p->n_ids, "end token %d is out of range; ids are 0 to %d", p->eos[i],
        p->n_ids - 1);
  REFUSE((p->bytes != NULL) != (p->offsets != NULL), "bytes and offsets go together; give both or neither");
  for (int32_t i = 0; p->bytes && i < p->n_ids; i++)
    REFUSE(p->offsets[i + 1] < p->offsets[i], "the offsets of the id texts fall at id %d", i);
  REFUSE(p->drafter && (!p->drafter->name || !p->drafter->open || !p->drafter->propose ||
                           !p->drafter->commit || !p->drafter->close),
      "a drafter needs a name, open, propose, commit and close");
  REFUSE(p->drafter && p->drafter->hidden && p->drafter->hidden != t->hidden,
      "the drafter %s reads hidden states of %d numbers, but the target gives %d; use a head that was "
      "trained for this target",
      p->drafter->name, p->drafter->hidden, t->hidden);
#undef REFUSE
  return SPECC_OK;
}

static void *copy_bytes(const void *from, size_t n) {
  void *to = malloc(n ? n : 1);
  if (to && n) memcpy(to, from, n);
  return to;
}

static int copy_texts(specc_model *m, const specc_model_parts *p) {
  m->max_token_bytes = 1;
  if (!p->bytes) return SPECC_OK;
  m->offsets = copy_bytes(p->offsets, ((size_t)p->n_ids + 1) * sizeof *p->offsets);
  m->bytes = copy_bytes(p->bytes, p->offsets[p->n_ids]);
  for (int32_t i = 0; i < p->n_ids; i++) {
    int32_t n = (int32_t)(p->offsets[i + 1] - p->offsets[i]);
    if (n > m->max_token_bytes) m->max_token_bytes = n;
  }
  return m->offsets && m->bytes ? SPECC_OK : SPECC_E_MEMORY;
}

/* The certificate before any measurement: none, or bit-exact for all widths where the caller vouches for it
 * (assume_exact). */
static void make_first_certificate(const specc_model *m, int exact, specc_certificate *c) {
  memset(c, 0, sizeof *c);
  c->kind = exact ? SPECC_CERT_BIT_EXACT : SPECC_CERT_NONE;
  c->reasons = exact ? 0 : SPECC_R_UNCERTIFIED_DEVICE;
  c->law_width = m->target.widths[0];
  c->n_widths = m->target.n_widths;
  c->threads = m->threads;
  for (int32_t i = 0; i < c->n_widths; i++) {
    c->widths[i] = m->target.widths[i];
    c->width_class[i] = exact ? 0 : -1;
  }
}

int specc_model_create(const specc_model_parts *p, specc_model **out) {
  if (!out) return specc_error(SPECC_E_ARGUMENT, "specc_model_create needs a place for the model");
  *out = NULL;
  int code = check_parts(p);
  if (code) return code;
  specc_model *m = calloc(1, sizeof *m);
  if (!m) return specc_error(SPECC_E_MEMORY, "no memory for a model");
  m->opener = (int32_t)getpid();
  m->n_ids = p->n_ids;
  m->context = p->context;
  m->k_max = p->k_max;
  m->strip_leading_space = p->strip_leading_space;
  m->n_eos = p->n_eos;
  m->eos = copy_bytes(p->eos, (size_t)p->n_eos * sizeof *p->eos);
  code = copy_texts(m, p);
  if (code || !m->eos) { /* the engines stay the caller's */
    specc_model_free(m);
    return specc_error(SPECC_E_MEMORY, "no memory for the texts of %d ids", p->n_ids);
  }
  m->target = *p->target;
  m->chunk = m->target.widths[m->target.n_widths - 1];
  specc_device(m->device, sizeof m->device, m->fingerprint, sizeof m->fingerprint);
  if (m->target.device) snprintf(m->device, sizeof m->device, "%s", m->target.device);
  if (m->target.fingerprint) snprintf(m->fingerprint, sizeof m->fingerprint, "%s", m->target.fingerprint);
  if (p->drafter) m->drafter = *p->drafter;
  specc_certificate c;
  make_first_certificate(m, p->assume_exact, &c);
  specc_model_set_certificate(m, &c);
  *out = m;
  return SPECC_OK;
}

int model_check_process(const specc_model *m) {
  if (SPECC_IS_OPENER(m->opener)) return SPECC_OK;
  return specc_error(SPECC_E_UNSUPPORTED, SPECC_FORKED, m->opener, (int)getpid());
}

/* In a forked child a backend's release gives back its memory and leaves its engine alone. */
void specc_model_free(specc_model *m) {
  if (!m) return;
  if (m->drafter.release) m->drafter.release(m->drafter.self);
  if (m->target.release) m->target.release(m->target.self);
  free(m->eos);
  free(m->bytes);
  free(m->offsets);
  free(m);
}

static int32_t find_class(const specc_certificate *c, int32_t width) {
  for (int32_t i = 0; i < c->n_widths; i++)
    if (c->widths[i] == width) return c->width_class[i];
  return -1;
}

int specc_model_set_certificate(specc_model *m, const specc_certificate *c) {
  if (!m || !c)
    return specc_error(SPECC_E_ARGUMENT, "specc_model_set_certificate needs a model and a certificate");
  if (c->kind < SPECC_CERT_NONE || c->kind > SPECC_CERT_BIT_EXACT || c->k < 0 || c->k > SPECC_MAX_K)
    return specc_error(SPECC_E_ARGUMENT,
        "the certificate has kind %d and k %d; use one that specc_certify filled", c->kind, c->k);
  bool same = c->n_widths == m->target.n_widths &&
              !memcmp(c->widths, m->target.widths, (size_t)c->n_widths * sizeof *c->widths);
  int32_t law = same ? find_class(c, c->law_width) : -1;
  bool listed = c->kind == SPECC_CERT_NONE;
  for (int32_t i = 0; same && i < c->n_widths; i++) listed = listed || c->widths[i] == c->law_width;
  if (!same || !listed || (c->kind == SPECC_CERT_BIT_EXACT && law < 0))
    return specc_error(SPECC_E_ARGUMENT,
        "the certificate lists other widths than the engine; run specc gate on this bundle");
  m->certificate = *c;
  m->law_width = c->kind == SPECC_CERT_NONE ? m->target.widths[0] : c->law_width;
  m->prefill_in_class = c->kind == SPECC_CERT_BIT_EXACT && find_class(c, m->chunk) == law;
  memset(m->verify_width, 0, sizeof m->verify_width);
  for (int32_t k = m->k_max; k >= 1; k--)
    for (int32_t i = c->n_widths - 1; i >= 0; i--)
      if (c->widths[i] > k && (c->kind == SPECC_CERT_BOUNDED || (law >= 0 && c->width_class[i] == law)))
        m->verify_width[k] = c->widths[i];
  m->reasons = c->reasons | m->lint | (m->drafter.name ? 0 : SPECC_R_REQUESTED);
  if (c->kind == SPECC_CERT_NONE && !(m->reasons & ~(uint32_t)SPECC_R_REQUESTED))
    m->reasons |= SPECC_R_UNCERTIFIED_DEVICE;
  if (c->kind != SPECC_CERT_NONE && !m->verify_width[1]) m->reasons |= SPECC_R_NUMERICS;
  return SPECC_OK;
}

int specc_model_info_get(const specc_model *m, specc_model_info *info) {
  if (!m || !info)
    return specc_error(SPECC_E_ARGUMENT, "specc_model_info_get needs a model and a place for the answer");
  *info = (specc_model_info){.n_ids = m->n_ids,
      .vocab = m->target.vocab,
      .context = m->context,
      .capacity = m->target.capacity,
      .k_max = m->k_max,
      .chunk = m->chunk,
      .threads = m->threads,
      .n_eos = m->n_eos,
      .enabled = !m->reasons,
      .reasons = m->reasons,
      .backend = m->target.name ? m->target.name : "",
      .backend_version = m->target.version ? m->target.version : "",
      .drafter = m->drafter.name ? m->drafter.name : "",
      .engine_sha256 = m->engine_sha256,
      .digest = m->digest,
      .device = m->device,
      .fingerprint = m->fingerprint,
      .eos = m->eos,
      .certificate = m->certificate};
  return SPECC_OK;
}
