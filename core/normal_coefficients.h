// The constants of core/normal.h, for it and for its vector form
// (kernels/normal_draw.h), which must agree to the last bit. Coefficients run
// from the highest power down.
#pragma once

namespace terrace::internal {

// Wichura, Algorithm AS 241 (PPND16), 1988: three pairs of polynomials, in
// 0.425^2 - q^2, r - 1.6 and r - 5.
inline constexpr double kCentralNumerator[] = {
    2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
    45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
    133.14166789178437745, 3.387132872796366608};
inline constexpr double kCentralDenominator[] = {
    5226.495278852854561,  28729.085735721942674,
    39307.89580009271061,  21213.794301586595867,
    5394.1960214247511077, 687.1870074920579083,
    42.313330701600911252, 1.0};
inline constexpr double kTailNumerator[] = {
    7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177,
    1.27045825245236838258,   3.64784832476320460504,   5.7694972214606914055,
    4.6303378461565452959,    1.42343711074968357734};
inline constexpr double kTailDenominator[] = {
    1.05075007164441684324e-9, 5.475938084995344946e-4,
    0.0151986665636164571966,  0.14810397642748007459,
    0.68976733498510000455,    1.6763848301838038494,
    2.05319162663775882187,    1.0};
inline constexpr double kFarNumerator[] = {
    2.01033439929228813265e-7, 2.71155556874348757815e-5,
    0.0012426609473880784386,  0.026532189526576123093,
    0.29656057182850489123,    1.7848265399172913358,
    5.4637849111641143699,     6.6579046435011037772};
inline constexpr double kFarDenominator[] = {
    2.04426310338993978564e-15, 1.4215117583164458887e-7,
    1.8463183175100546818e-5,   7.868691311456132591e-4,
    0.0148753612908506148525,   0.13692988092273580531,
    0.59983220655588793769,     1.0};

// log m = 2 f + 2 f series(f^2) with f = (m - 1) / (m + 1).
inline constexpr double kLogSeries[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17,
                                        1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,
                                        1.0 / 7,  1.0 / 5,  1.0 / 3,  0.0};

inline constexpr double kSqrt2 = 1.4142135623730951;
inline constexpr double kLn2High = 0x1.62e42feep-1;  // multiples stay exact
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

}  // namespace terrace::internal
