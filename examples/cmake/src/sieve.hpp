#pragma once

#include <cstddef>
#include <vector>

// Returns all primes up to and including `limit`, in order.
std::vector<std::size_t> primes_up_to(std::size_t limit);
