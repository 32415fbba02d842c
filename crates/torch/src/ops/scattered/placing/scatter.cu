const i64 rows = into.size($dim$); const I n = (I)index.size($dim$);
    I to[$size$]; for (int d = 0; d < $rank$; ++d) to[d] = i[d];
    for (I j = 0; j < n; ++j) {
        i[$dim$] = j;
        i64 place = index.at(i); if (place < 0) place += rows;
        if (place < 0 || place >= rows || place == skipped) continue;
        to[$dim$] = (I)place;
        into.set_at($combined$, to);
    }
