-- Parts that other statements include: expressions on an error's text, e.text. Each takes
-- microseconds, so they are computed only for messages that failed for good.

-- {errors/line}: the line that names the error: the last line of a bare traceback, else the first
left(CASE WHEN starts_with(e.text, 'Traceback (most recent call last)')
          THEN substring(rtrim(e.text, E' \n') FROM '[^\n]*$')
          ELSE split_part(e.text, E'\n', 1) END, 300)

-- {errors/frame}: file and function of the innermost frame that is not library code
(SELECT f.found[1] || ' ' || f.found[2]
 FROM regexp_matches(e.text, 'File "([^"\n]+)", line \d+, in ([^\n]+)', 'g')
      WITH ORDINALITY AS f (found, place)
 WHERE f.found[1] !~ '(site|dist)-packages/|/lib/python\d|^<'
 ORDER BY f.place DESC LIMIT 1)

-- {errors/kind}: a number that similar errors share: a hash of the frame and the line. Numbers, ids
-- and quoted text are left out, but quoted names count: KeyError: 'a' and KeyError: 'b' differ.
hashtextextended(concat({errors/frame}, E'\n', regexp_replace(regexp_replace({errors/line},
    $$('[A-Za-z_.]+'|"[A-Za-z_][\w.]*")|'[^']*'|"[^"]*"|`[^`]*`|“[^”]*”|<[^<>]*>$$, '\1', 'g'),
    '[0-9a-fA-F]*\d\w*([-.:,/][0-9a-fA-F]*\d\w*)*', '', 'g')), 0) & 9223372036854775807
