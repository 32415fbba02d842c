i64 left = i[1]; T own = 1;
    for (int d = $count$ - 1; d >= 0; --d) {
        const i64 n = sides[d], at = left % n; left /= n;
        if ((i64)i[2] != $count$ - 1 - d) continue;
        own = n <= 1 ? (T)0 : (T)-1 + (T)2 * (T)at / (T)(n - 1);
        if (!aligned) own = own * (T)(n - 1) / (T)n;
    }
    base.set_at(own, i);
