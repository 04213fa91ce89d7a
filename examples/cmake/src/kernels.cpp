#include "kernels.hpp"

#include <vector>

double descend(const double* inputs, const double* targets, double* weights, std::size_t rows,
               std::size_t columns, double rate) {
    std::vector<double> gradient(columns, 0.0);
    double loss = 0.0;
    for (std::size_t row = 0; row < rows; ++row) {
        const double* input = inputs + row * columns;
        double error = -targets[row];
        for (std::size_t column = 0; column < columns; ++column) {
            error += input[column] * weights[column];
        }
        loss += error * error;
        for (std::size_t column = 0; column < columns; ++column) {
            gradient[column] += 2 * error * input[column];
        }
    }
    for (std::size_t column = 0; column < columns; ++column) {
        weights[column] -= rate * gradient[column] / rows;
    }
    return loss / rows;
}
