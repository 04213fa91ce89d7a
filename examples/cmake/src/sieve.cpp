#include "sieve.hpp"

std::vector<std::size_t> primes_up_to(std::size_t limit) {
    std::vector<bool> composite(limit + 1, false);
    std::vector<std::size_t> primes;
    for (std::size_t candidate = 2; candidate <= limit; ++candidate) {
        if (composite[candidate]) {
            continue;
        }
        primes.push_back(candidate);
        for (std::size_t multiple = candidate * candidate; multiple <= limit; multiple += candidate) {
            composite[multiple] = true;
        }
    }
    return primes;
}
