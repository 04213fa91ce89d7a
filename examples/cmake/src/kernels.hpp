#pragma once

#include <cstddef>

// One step of gradient descent for least squares: `inputs` has `rows` x `columns` values in
// row-major order, `targets` has `rows`, `weights` has `columns`, which are changed in place.
// Returns the mean squared error before the step.
double descend(const double* inputs, const double* targets, double* weights, std::size_t rows,
               std::size_t columns, double rate);
