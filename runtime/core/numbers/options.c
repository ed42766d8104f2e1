/* options.c - the ranges that sampling options may have. */
#include "core/io/error.h"
#include "core/numbers/sampling.h"
#include <math.h>
#include <string.h>

#define REFUSE(condition, ...)                                                                               \
  do {                                                                                                       \
    if (condition) return specc_error(SPECC_E_ARGUMENT, __VA_ARGS__);                                        \
  } while (0)

int check_options(const specc_options *o) {
  REFUSE(!(o->temperature >= 0 && o->temperature <= 1e300),
      "temperature is %g; give a finite number >= 0 (0 is argmax)", o->temperature);
  REFUSE(!(o->top_p > 0 && o->top_p <= 1), "top_p is %g; give a number in (0, 1] (1 is off)", o->top_p);
  REFUSE(!(o->min_p >= 0 && o->min_p <= 1), "min_p is %g; give a number in [0, 1] (0 is off)", o->min_p);
  REFUSE(!(o->repetition_penalty > 0 && o->repetition_penalty <= 1e300),
      "repetition_penalty is %g; give a finite number > 0 (1 is off)", o->repetition_penalty);
  REFUSE(!(fabs(o->presence_penalty) <= 1e300), "presence_penalty is %g; give a finite number (0 is off)",
      o->presence_penalty);
  REFUSE(!(fabs(o->frequency_penalty) <= 1e300), "frequency_penalty is %g; give a finite number (0 is off)",
      o->frequency_penalty);
  REFUSE(o->top_k < 0, "top_k is %d; give a whole number >= 0 (0 is off)", o->top_k);
  return SPECC_OK;
}

int check_bias(workspace *w, const specc_options *o) {
  int32_t n_ids = w->n_ids;
  if (o->n_bias > 0 && !++w->stamp) {
    memset(w->stamps, 0, (size_t)n_ids * sizeof *w->stamps);
    w->stamp = 1;
  }
  REFUSE(o->n_bias < 0 || o->n_bias > n_ids, "logit bias names %d ids; give 0 to %d", o->n_bias, n_ids);
  REFUSE(o->n_bias && (!o->bias_ids || !o->bias_values),
      "logit bias has %d entries and no arrays; give bias_ids and bias_values", o->n_bias);
  for (int32_t i = 0; i < o->n_bias; i++) {
    REFUSE(o->bias_ids[i] < 0 || o->bias_ids[i] >= n_ids, "logit bias names id %d; ids are 0 to %d",
        o->bias_ids[i], n_ids - 1);
    REFUSE(w->stamps[o->bias_ids[i]] == w->stamp, "logit bias names id %d twice; name each id once",
        o->bias_ids[i]);
    w->stamps[o->bias_ids[i]] = w->stamp;
    REFUSE(!(o->bias_values[i] <= 1e300), "logit bias of id %d is %g; give a finite number or -infinity",
        o->bias_ids[i], o->bias_values[i]);
  }
  return SPECC_OK;
}
