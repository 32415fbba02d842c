T squares = 0;
for_each(j) squares += square((T)v(j));
const T norm = sqrt(row_sum(squares)), factor = (T)g(0) / norm;
for_each(j) w.set((T)v(j) * factor, j);
if (is_first) norms.set(norm, 0);
