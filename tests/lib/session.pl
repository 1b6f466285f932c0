#!/usr/bin/perl
# Takes the console sessions out of a document, and compares what was seen with what the document shows.
#
#   session.pl extract DOCUMENT DIRECTORY   writes DIRECTORY/N.command and DIRECTORY/N.expected for each command, prints how many
#   session.pl compare EXPECTED SEEN        exit code 0 when they agree, else says where they part
#
# Every fenced block marked `console` after a line `<!-- session: NAME -->` is a part of one session. A line that begins with `$ ` or `# ` is a command, `> ` goes on
# with it, and what follows is what is seen. In that, `…` (or `...`) stands for any text within a line, and alone on a line
# for any lines. `<!-- before: COMMAND -->` is a command that readers do not see; it may show anything.
use strict;
use warnings;

sub slurp { open my $in, '<', $_[0] or die "$_[0]: $!\n"; local $/; my $text = <$in>; return defined $text ? $text : '' }
sub spill { open my $out, '>', $_[0] or die "$_[0]: $!\n"; print $out $_[1]; close $out or die "$_[0]: $!\n" }

sub extract {
    my ($document, $directory) = @_;
    my ($inside, $marked, $count, @steps) = (0, 0, 0);
    for my $line (split /\n/, slurp($document)) {
        # In a list, a block is indented.
        $line =~ s/^ +(?=```|<!--)//;
        $line =~ s/^   // if $inside;
        if ($line =~ /^<!-- session: .* -->$/) { $marked = 1; next }
        if ($line =~ /^<!-- before: (.*) -->$/) { push @steps, { command => "$1\n", expected => "…\n" }; next }
        if ($line =~ /^```(\w*)/) { $inside = !$inside && $marked && $1 eq 'console'; $marked = 0; next }
        next unless $inside;
        if ($line =~ /^[\$#] (.*)/) { push @steps, { command => "$1\n", expected => '' } }
        elsif ($line =~ /^> (.*)/ && @steps && $steps[-1]{expected} eq '') { $steps[-1]{command} .= "$1\n" }
        elsif (@steps) { $steps[-1]{expected} .= "$line\n" }
        elsif ($line =~ /\S/) { die "$document: output before any command: $line\n" }
    }
    for my $step (@steps) {
        $count++;
        spill("$directory/$count.command",  $step->{command});
        spill("$directory/$count.expected", $step->{expected});
    }
    print "$count\n";
}

# One expected line as a pattern for one line.
sub line_pattern { return join '.*', map { quotemeta } split /…|\.\.\./, $_[0], -1 }

sub compare {
    my ($expected_file, $seen_file) = @_;
    my @expected = split /\n/, slurp($expected_file);
    # What cargo says about building is not the program's.
    my @seen = grep { !/^\s*(Compiling|Finished|Running|Downloading|Downloaded|Updating|Locking|Adding|Blocking|Fresh)\b/ } split /\n/, slurp($seen_file);
    s/\e\[[0-9;]*[A-Za-z]//g, s/\s+$// for @seen;
    s/\s+$// for @expected;
    @expected = grep { !/^\s*$/ } @expected;
    @seen     = grep { !/^\s*$/ } @seen;
    my $at = 0;
    my $any = 0;
    for my $line (@expected) {
        if ($line =~ /^\s*(…|\.\.\.)\s*$/) { $any = 1; next }
        my $pattern = line_pattern($line);
        if ($any) { $at++ while $at < @seen && $seen[$at] !~ /^$pattern$/ }
        if ($at >= @seen || $seen[$at] !~ /^$pattern$/) {
            print "the document shows: $line\nbut seen is:        ", ($at < @seen ? $seen[$at] : '(nothing more)'), "\n";
            return 1;
        }
        $at++;
        $any = 0;
    }
    if (!$any && $at < @seen) { print "seen, but not in the document: $seen[$at]\n"; return 1 }
    return 0;
}

my $verb = shift @ARGV // '';
if    ($verb eq 'extract' && @ARGV == 2) { extract(@ARGV) }
elsif ($verb eq 'compare' && @ARGV == 2) { exit compare(@ARGV) }
else                                     { die "session.pl extract DOCUMENT DIRECTORY | compare EXPECTED SEEN\n" }
