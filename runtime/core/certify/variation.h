/* variation.h - how far apart the rows of two widths are where their bits differ. */
#ifndef SPECC_VARIATION_H
#define SPECC_VARIATION_H
#include "core/certify/measurement.h"

/* Fills tv_mean, tv_max, tv_rows, flips and flip_margin of the certificate. */
int measure_variation(measurement *m);
#endif
